//! Guessing tokens: how many, by whom, and what who guesses must be told of a step.

use candle_core::{Device, Tensor};

use super::{Generator, Part, Predicted, Running, Serving};
use crate::draft_model::{Candidate, one_each};
use crate::error::Result;

impl Generator<'_, '_> {
    /// Whether the model's own prediction layer guesses.
    pub(super) fn predicts(&self) -> bool {
        self.serving.draft.is_none() && self.serving.model.prediction().is_some()
    }

    /// How many tokens behind the known ones a step may verify: no more than are wanted, nor beyond where a state is kept.
    pub(super) fn most_drafts(&self, Running { job, lease, .. }: &Running) -> usize {
        let planned = self.serving.limits.draft_positions.saturating_sub(1) as usize;
        let wanted = job.request.max_new_tokens - job.generated().len();
        let most = planned.min(wanted.saturating_sub(1));
        match (&self.serving.prefixes, lease) {
            (Some(prefixes), Some(lease)) => prefixes.next_tokens(lease, most + 1).saturating_sub(1),
            _ => most,
        }
    }

    /// Lets a draft model or the model's own layer make the guesses that there is room for, each drawn as the model's own
    /// token at its place will be, so that models which agree draw alike.
    pub(super) fn guess(&mut self, parts: &mut [Part]) -> Result<()> {
        let Serving { model, caches, draft, .. } = &self.serving;
        if draft.is_none() && !self.predicts() {
            return Ok(());
        }
        let hidden = |running: &Running| running.job.predicted.as_ref().map(|predicted| predicted.hidden.clone());
        let mut hidden: Vec<Option<Tensor>> = self.running.iter().map(hidden).collect();
        for place in 0..parts.iter().map(Part::drafts).max().unwrap_or(0) {
            // Who guesses one more token has caches of what is before it.
            let guessing = parts.iter().enumerate().filter(|(_, part)| part.drafts() > place);
            let candidates: Vec<Candidate> = guessing
                .map(|(sequence, part)| {
                    let known = self.running[sequence].job.tokens.last().copied().unwrap_or(0);
                    Candidate { sequence, place, token: if place == 0 { known } else { part.drafts.tokens[place - 1] } }
                })
                .collect();
            let of = |all: &[Option<Tensor>]| -> Vec<Tensor> {
                candidates.iter().filter_map(|candidate| all[candidate.sequence].clone()).collect()
            };
            let logits = match (draft, place) {
                (Some(draft), _) => draft.next(&candidates, caches, &self.metadata)?,
                (None, 0) => {
                    let said = |running: &Running| running.job.predicted.as_ref().map(|said| said.logits.clone());
                    Tensor::stack(&of(&self.running.iter().map(said).collect::<Vec<_>>()), 0)?
                }
                // It stands where the token before the guess does.
                (None, _) => {
                    let before: Vec<Candidate> =
                        candidates.iter().map(|candidate| Candidate { place: place - 1, ..*candidate }).collect();
                    let tokens: Vec<u32> = candidates.iter().map(|candidate| candidate.token).collect();
                    let rows: Vec<u32> = (0..tokens.len() as u32).collect();
                    let step = one_each(&before, &self.metadata);
                    let [logits, next] =
                        model.predict(&Tensor::cat(&of(&hidden), 0)?, &tokens, &rows, caches, &step)?;
                    for (row, candidate) in candidates.iter().enumerate() {
                        hidden[candidate.sequence] = Some(next.narrow(0, row, 1)?);
                    }
                    logits.to_device(&Device::Cpu)?
                }
            };
            for (row, Candidate { sequence, .. }) in candidates.iter().enumerate() {
                let sampler = &mut self.running[*sequence].job.sampler;
                // One that is no number is a bad guess, and no more.
                let guess = sampler.choose(&logits.get(row)?.to_vec1()?).unwrap_or(0);
                sampler.push(guess);
                parts[*sequence].drafts.tokens[place] = guess;
            }
        }
        for (running, part) in self.running.iter_mut().zip(parts) {
            part.drafts.tokens.iter().rev().for_each(|&guess| running.job.sampler.pop(guess));
        }
        Ok(())
    }

    /// Lets the model's own layer go over a step that the model has made: `hidden` are its rows, `starts` the tokens that
    /// each job had before.
    pub(super) fn predict(&mut self, parts: &[Part], starts: &[usize], hidden: &Tensor) -> Result<()> {
        let (mut next, mut rows, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (part, start)) in parts.iter().zip(starts).enumerate().filter(|(_, (part, _))| part.tokens > 0) {
            let tokens = &self.running[index].job.tokens;
            let count = part.tokens + part.drafts();
            // One whose logits were no numbers has gained none; it has ended.
            let known = count.min(tokens.len() - start - 1).max(1);
            rows.push((next.len() + known - 1) as u32);
            jobs.push(index);
            // Behind a wrong guess nothing is known; what is computed there is computed again.
            next.extend((1..=count).map(|behind| tokens.get(start + behind).copied().unwrap_or(0)));
        }
        let Serving { model, caches, .. } = &self.serving;
        let [logits, hidden] = model.predict(hidden, &next, &rows, caches, &self.metadata)?;
        let logits = logits.to_device(&Device::Cpu)?;
        for (row, index) in jobs.into_iter().enumerate() {
            let predicted = Predicted { logits: logits.get(row)?, hidden: hidden.narrow(0, row, 1)? };
            self.running[index].job.predicted = Some(predicted);
        }
        Ok(())
    }

    /// Computes a draft model's caches of what a verifying step has left it: its last guess where all were right, and
    /// the known token where it made none.
    pub(super) fn catch_up(&self, parts: &[Part], accepted: &[(usize, Vec<u32>)]) -> Result<()> {
        let Serving { caches, draft: Some(draft), .. } = &self.serving else { return Ok(()) };
        let behind = parts.iter().zip(accepted).enumerate().filter_map(|(sequence, (part, (_, path)))| {
            let place = part.drafts();
            let known = &self.running[sequence].job.tokens[self.running[sequence].computed..];
            let token = part.drafts.tokens.last().or(known.first()).copied()?;
            (path.len() == place + 1).then_some(Candidate { sequence, place, token })
        });
        let behind: Vec<Candidate> = behind.collect();
        if !behind.is_empty() {
            draft.next(&behind, caches, &self.metadata)?;
        }
        Ok(())
    }
}
