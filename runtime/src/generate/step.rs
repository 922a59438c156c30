//! A step: how many tokens of each job it computes, and what comes of it.

use std::time::Instant;

use cacheplan_managers::book::{Accepted, SequenceId};
use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::shares::Shares;
use super::{Generator, Part, Running, Serving};
use crate::commit::commit;
use crate::error::{RequestError, Result};
use crate::request::Finish;
use crate::sampling::Sampler;
use crate::speculate::Guesses;

impl Generator<'_, '_> {
    /// How many tokens of each running job the next step computes.
    pub(super) fn schedule(&self) -> Shares {
        let tokens = usize::try_from(self.serving.limits.max_num_tokens).unwrap_or(usize::MAX);
        let pending: Vec<usize> = self.running.iter().map(Running::pending).collect();
        Shares::of(&pending, tokens, self.serving.max_prefill, |index, left| self.chunk(&self.running[index], left))
    }

    /// How many of `left` tokens a job computes next: no more than up to where a state is kept.
    fn chunk(&self, running: &Running, left: usize) -> usize {
        let budget = running.pending().min(left);
        match (&self.serving.prefixes, &running.lease) {
            (Some(prefixes), Some(lease)) => prefixes.next_tokens(lease, budget),
            _ => budget,
        }
    }

    /// What the next step computes of each running job, with guesses if `drafting`.
    ///
    /// Guesses are made where every job decodes: a step either computes what is known or verifies. Those of a draft model
    /// are made when there is room for them.
    pub(super) fn parts(&mut self, drafting: bool) -> Vec<Part> {
        let Shares { chunks, mut left, .. } = self.schedule();
        let verifies =
            drafting && self.running.iter().zip(&chunks).all(|(job, &chunk)| (job.pending(), chunk) == (1, 1));
        let most = |running| if verifies { self.most_drafts(running) } else { 0 };
        let most: Vec<usize> = self.running.iter().map(most).collect();
        let (drafting, predicts) = (self.serving.draft.is_some(), self.predicts());
        let tree = self.serving.tree;
        let parts = self.running.iter_mut().zip(chunks).zip(most).map(|((Running { job, .. }, tokens), most)| {
            let most = most.min(left);
            let mut look_up = || job.lookup.look_up(&job.tokens, most).to_vec();
            let (drafts, chain) = match job.predicted {
                _ if drafting => (Guesses::chain(vec![0; most]), None),
                Some(_) => (Guesses::chain(vec![0; most]), None),
                None if predicts => (Guesses::default(), None),
                None if tree && most > 0 => {
                    let chain = look_up();
                    (job.lookup.look_up_tree(&job.tokens, most), Some(chain))
                }
                None => (Guesses::chain(look_up()), None),
            };
            left -= drafts.tokens.len();
            Part { tokens, drafts, chain }
        });
        parts.collect()
    }

    /// Runs the step and appends a token to each job whose tokens are all computed, and more where guesses were right.
    pub(super) fn step(&mut self, parts: &[Part]) -> Result<()> {
        let verifies = parts.iter().any(|part| part.drafts() > 0);
        let starts: Vec<usize> = self.running.iter().map(|running| running.computed).collect();
        let predicts = self.predicts();
        let (mut tokens, mut rows, mut complete) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (running, part)) in self.running.iter_mut().zip(parts).enumerate() {
            tokens.extend_from_slice(&running.job.tokens[running.computed..][..part.tokens]);
            let known = tokens.len() as u32;
            tokens.extend_from_slice(&part.drafts.tokens);
            match &part.chain {
                Some(chain) if verifies => running.job.chains.push((running.job.tokens.len(), chain.clone())),
                _ => {}
            }
            if !verifies {
                running.computed += part.tokens;
            }
            if part.tokens > 0 && (verifies || running.pending() == 0) {
                rows.extend(known - 1..tokens.len() as u32);
                complete.push(index);
            }
        }
        let Serving { model, draft, caches, .. } = &mut self.serving;
        let begun = Instant::now();
        let forward = tracing::debug_span!("forward", tokens = tokens.len(), rows = rows.len(), verifies).entered();
        let (logits, hidden) = match predicts {
            true => {
                let [logits, hidden] = model.forward_with_hidden(&tokens, &rows, caches, &self.metadata)?;
                (logits, Some(hidden))
            }
            false => (model.forward(&tokens, &rows, caches, &self.metadata)?, None),
        };
        let logits = logits.to_device(&Device::Cpu)?;
        forward.exit();
        if parts.iter().any(|part| part.tokens > 1) {
            self.costs.computed(tokens.len(), begun.elapsed());
        }
        if let Some(draft) = draft.filter(|_| !verifies) {
            tracing::debug_span!("draft").in_scope(|| draft.fill(&tokens, caches, &self.metadata))?;
        }
        let accepted = tracing::debug_span!("sampling").in_scope(|| self.verify(&complete, parts, &logits))?;
        if let Some(hidden) = hidden {
            tracing::debug_span!("prediction").in_scope(|| self.predict(parts, &starts, &hidden))?;
        }
        if verifies {
            self.catch_up(parts, &accepted)?;
            for (index, path) in &accepted {
                self.running[*index].computed += path.len();
                self.serving.recorder.drafted(parts[*index].drafts(), path.len() - 1);
            }
            let sequences = accepted.iter().map(|(index, _)| self.running[*index].sequence);
            let accepted: Vec<(SequenceId, Accepted<'_>)> =
                sequences.zip(&accepted).map(|(sequence, (_, path))| (sequence, Accepted::Path(path))).collect();
            let Serving { model, caches, .. } = &mut self.serving;
            tracing::debug_span!("commit").in_scope(|| commit(model, caches, &accepted))?;
        }
        tracing::debug_span!("prefixes").in_scope(|| self.remember(parts))
    }

    /// Appends what the model says behind the known tokens of the jobs that are complete: a token, and another for each
    /// guess that was right before it. The jobs, and the rows of each step whose tokens count.
    ///
    /// Each is drawn as it would be without the guess, so that what is generated is the same.
    fn verify(&mut self, complete: &[usize], parts: &[Part], logits: &Tensor) -> Result<Vec<(usize, Vec<u32>)>> {
        let mut first = vec![None; parts.len()];
        let mut row = 0;
        for &index in complete {
            first[index] = Some(row);
            row += 1 + parts[index].drafts();
        }
        let jobs = self.running.par_iter_mut().zip(parts).zip(&first);
        let drawn = jobs.map(|((Running { job, .. }, part), first)| match first {
            Some(first) => draw(&mut job.sampler, &part.drafts, |place| logits.get(first + place)?.to_vec1()),
            None => Ok(Vec::new()),
        });
        let drawn: Vec<Vec<(usize, Option<u32>)>> = drawn.collect::<Result<_, _>>()?;
        let mut accepted = Vec::with_capacity(complete.len());
        for (&index, first) in complete.iter().zip(first.iter().flatten()) {
            let mut path = Vec::new();
            for (place, token) in &drawn[index] {
                match token {
                    Some(token) => self.append(index, *token, logits.get(first + place)?),
                    None => self.fail(index),
                }
                path.push(*place as u32);
                if self.running[index].job.finish.is_some() {
                    break;
                }
            }
            accepted.push((index, path));
        }
        Ok(accepted)
    }

    /// Ends a job whose logits are no numbers.
    fn fail(&mut self, index: usize) {
        let job = &mut self.running[index].job;
        job.finish = Some(Finish::Error);
        job.error = Some(RequestError::NotANumber { request: job.place });
    }

    /// Takes a token that was generated, and says why it is the last, if it is.
    fn append(&mut self, index: usize, token: u32, logits: Tensor) {
        let now = self.now();
        let Serving { eos, keep_logits, follower, recorder, .. } = &mut self.serving;
        let job = &mut self.running[index].job;
        job.tokens.push(token);
        job.sampler.push(token);
        if *keep_logits {
            job.logits.push(logits);
        }
        match job.first_token {
            None => job.first_token = Some(now),
            Some(_) => recorder.gap(now.saturating_sub(job.last_token)),
        }
        job.last_token = now;
        let goes_on = follower.token(job.place, token);
        job.finish = match () {
            () if eos.contains(&token) || !goes_on => Some(Finish::Stop),
            () if job.generated().len() >= job.request.max_new_tokens => Some(Finish::Length),
            () => None,
        };
    }

    /// Tells the prefixes what was computed.
    fn remember(&mut self, parts: &[Part]) -> Result<()> {
        let Serving { caches, prefixes: Some(prefixes), .. } = &mut self.serving else { return Ok(()) };
        let stepped = self.running.iter_mut().zip(parts).filter(|(_, part)| part.tokens > 0);
        for (Running { job, lease, computed, .. }, _) in stepped {
            if let Some(lease) = lease {
                let decoded = &job.tokens[lease.tokens().len().min(*computed)..*computed];
                caches.with_book(|book| prefixes.computed(book, lease, decoded))?;
            }
        }
        let prompts =
            self.running.iter().zip(parts).filter(|(running, part)| part.tokens > 1 && running.job.finish.is_none());
        prompts.map(|(running, _)| running).try_for_each(|running| Self::leave_in_file(&mut self.serving, running))
    }
}

/// What is drawn behind the known token, and behind each guess that it bears out, with their places; `None` where the
/// logits are no numbers. `logits` are those behind a place.
fn draw(
    sampler: &mut Sampler,
    drafts: &Guesses,
    logits: impl Fn(usize) -> candle_core::Result<Vec<f32>>,
) -> candle_core::Result<Vec<(usize, Option<u32>)>> {
    let (mut drawn, mut right) = (vec![(0, sampler.choose(&logits(0)?))], Vec::new());
    while let Some(&(place, Some(token))) = drawn.last()
        && let Some(place) = drafts.behind(place, token)
    {
        sampler.push(token);
        right.push(token);
        drawn.push((place, sampler.choose(&logits(place)?)));
    }
    right.into_iter().rev().for_each(|token| sampler.pop(token));
    Ok(drawn)
}
