//! A step: how many tokens of each job it computes, and what comes of it.

use std::time::Instant;

use cacheplan_managers::ManagerError;
use cacheplan_managers::book::Accepted;
use candle_core::{Device, Tensor};

use super::{Generator, Job, Part, Running, Serving};
use crate::error::{RequestError, RuntimeError};
use crate::request::Finish;
use crate::speculate::look_up;

impl Generator<'_, '_> {
    /// How many tokens of each running job the next step computes, and how many more it could.
    ///
    /// Decoding goes before prompts, so that a long prompt does not hold up those that are under way.
    pub(super) fn schedule(&self) -> (Vec<usize>, usize) {
        let mut left = usize::try_from(self.serving.limits.max_num_tokens).unwrap_or(usize::MAX);
        let mut chunks = vec![0; self.running.len()];
        for decoding in [true, false] {
            for (chunk, running) in chunks.iter_mut().zip(&self.running) {
                if (running.pending() == 1) == decoding {
                    *chunk = self.chunk(running, left);
                    left -= *chunk;
                }
            }
        }
        (chunks, left)
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
    pub(super) fn parts(&self, drafting: bool) -> Vec<Part> {
        let (chunks, mut left) = self.schedule();
        let verifies =
            drafting && self.running.iter().zip(&chunks).all(|(job, &chunk)| (job.pending(), chunk) == (1, 1));
        let parts = self.running.iter().zip(chunks).map(|(running, tokens)| {
            let most = if verifies { self.most_drafts(running).min(left) } else { 0 };
            let drafts = match (self.serving.draft, &running.job.predicted) {
                (Some(_), _) | (None, Some(_)) => vec![0; most],
                (None, None) if self.predicts() => Vec::new(),
                (None, None) => look_up(&running.job.tokens, most).to_vec(),
            };
            left -= drafts.len();
            Part { tokens, drafts }
        });
        parts.collect()
    }

    /// Runs the step and appends a token to each job whose tokens are all computed, and more where guesses were right.
    pub(super) fn step(&mut self, parts: &[Part]) -> Result<(), RuntimeError> {
        let verifies = parts.iter().any(|part| !part.drafts.is_empty());
        let starts: Vec<usize> = self.running.iter().map(|running| running.computed).collect();
        let predicts = self.predicts();
        let (mut tokens, mut rows, mut complete) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (running, part)) in self.running.iter_mut().zip(parts).enumerate() {
            tokens.extend_from_slice(&running.job.tokens[running.computed..][..part.tokens]);
            let known = tokens.len() as u32;
            tokens.extend_from_slice(&part.drafts);
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
        let (logits, hidden) = match predicts {
            true => {
                let [logits, hidden] = model.forward_with_hidden(&tokens, &rows, caches, &self.metadata)?;
                (logits, Some(hidden))
            }
            false => (model.forward(&tokens, &rows, caches, &self.metadata)?, None),
        };
        let logits = logits.to_device(&Device::Cpu)?;
        if parts.iter().any(|part| part.tokens > 1) {
            self.costs.computed(tokens.len(), begun.elapsed());
        }
        if let Some(draft) = draft.filter(|_| !verifies) {
            draft.fill(&tokens, caches, &self.metadata)?;
        }
        let (mut row, mut accepted) = (0, Vec::new());
        for &index in &complete {
            let drafts = &parts[index].drafts;
            let right = self.verify(index, drafts, &logits, row)?;
            row += 1 + drafts.len();
            accepted.push((self.running[index].sequence, Accepted::First(right as u32)));
        }
        if let Some(hidden) = hidden {
            self.predict(parts, &starts, &hidden)?;
        }
        if verifies {
            self.catch_up(parts, &accepted)?;
            for (&index, (_, right)) in complete.iter().zip(&accepted) {
                let Accepted::First(right) = *right else { continue };
                self.running[index].computed += right as usize;
                self.serving.recorder.drafted(parts[index].drafts.len(), right as usize - 1);
            }
            let Serving { model, caches, .. } = &mut self.serving;
            let mut failed = None;
            let committed = caches.commit_replaying(&accepted, &mut |kept| {
                model.replay(kept).map_err(|error| {
                    let shown = error.to_string();
                    failed = Some(error);
                    ManagerError::Tensor(candle_core::Error::Msg(shown))
                })
            });
            match (committed, failed) {
                (Err(_), Some(error)) => return Err(error),
                (committed, _) => committed?,
            }
        }
        self.remember(parts)
    }

    /// Appends what the model says behind the known tokens: a token, and another for each guess that was right before it.
    /// How many there are.
    ///
    /// Each is drawn as it would be without the guess, so that what is generated is the same.
    fn verify(&mut self, index: usize, drafts: &[u32], logits: &Tensor, row: usize) -> Result<usize, RuntimeError> {
        for place in 0..=drafts.len() {
            let logits = logits.get(row + place)?;
            let Job { place: request_place, request, tokens, .. } = &self.running[index].job;
            let token = request.sampling.choose(&logits.to_vec1()?, tokens, request.prompt.len());
            let token = token.ok_or(RequestError::NotANumber { request: *request_place })?;
            self.append(index, token, logits);
            if self.running[index].job.finish.is_some() || drafts.get(place) != Some(&token) {
                return Ok(place + 1);
            }
        }
        Ok(drafts.len() + 1)
    }

    /// Takes a token that was generated, and says why it is the last, if it is.
    fn append(&mut self, index: usize, token: u32, logits: Tensor) {
        let now = self.now();
        let Serving { eos, keep_logits, follower, recorder, .. } = &mut self.serving;
        let job = &mut self.running[index].job;
        job.tokens.push(token);
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
    fn remember(&mut self, parts: &[Part]) -> Result<(), RuntimeError> {
        let Serving { caches, prefixes: Some(prefixes), .. } = &mut self.serving else { return Ok(()) };
        let stepped = self.running.iter_mut().zip(parts).filter(|(_, part)| part.tokens > 0);
        for (Running { job, lease, computed, .. }, _) in stepped {
            if let Some(lease) = lease {
                let decoded = &job.tokens[lease.tokens().len().min(*computed)..*computed];
                caches.with_book(|book| prefixes.computed(book, lease, decoded))?;
            }
        }
        Ok(())
    }
}
