//! Beam search: the best few continuations of a prompt, as forks of one sequence.
//!
//! Beams share the blocks of what they have in common; states are copied when a beam goes two ways. Which beams go on,
//! which are done and when the search ends is as in Hugging Face's `generate` without early stopping.

use cacheplan_managers::book::{SequenceId, StepMetadata, Work};
use cacheplan_managers::device::CacheManager;
use cacheplan_managers::prefix::PrefixReuse;
use cacheplan_managers::{BookError, ManagerError};
use cacheplan_planner::Limits;
use candle_core::Device;

use crate::decoder::Decoder;
use crate::error::{RequestError, Result};
use crate::request::Request;
use crate::sampling::Sampler;

/// How wide a beam search is, and how it compares long texts with short ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beams {
    /// Sequences that are followed at once.
    pub width: usize,
    /// The power of the length that a sequence's log-probability is divided by: above 0 prefers long ones.
    pub length_penalty: f32,
}

/// A continuation that a beam search has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// Its log-probability over its length to the power of the penalty.
    pub score: f64,
}

/// What a search runs over.
pub(crate) struct Search<'a> {
    pub(crate) model: &'a Decoder,
    pub(crate) caches: &'a mut CacheManager,
    pub(crate) prefixes: Option<&'a mut PrefixReuse>,
    pub(crate) limits: &'a Limits,
    pub(crate) eos: &'a [u32],
}

/// A sequence that is followed.
#[derive(Clone, Debug)]
struct Beam {
    tokens: Vec<u32>,
    /// The sum of the log-probabilities of its tokens.
    score: f64,
    sequence: SequenceId,
    /// Penalises what comes behind them.
    sampler: Sampler,
    /// Of each next token.
    scores: Vec<f64>,
}

/// A beam and the token that it would go on with.
#[derive(Clone, Copy, Debug)]
struct NextToken {
    beam: usize,
    token: u32,
    score: f64,
}

impl Search<'_> {
    /// The best continuations of a request's prompt, the best first. No sequence is left in the caches.
    pub(crate) fn run(mut self, request: &Request, beams: Beams) -> Result<Vec<Hypothesis>> {
        request.check(0, self.model.vocab_size(), self.limits.max_seq_len)?;
        let most = self.limits.max_batch_size.min(self.model.vocab_size() as u64 / 2);
        if beams.width == 0 || beams.width as u64 > most {
            return Err(RequestError::Beams { width: beams.width, most }.into());
        }
        let mut held = Vec::new();
        let found = self.search(request, beams, &mut held);
        for beam in held {
            self.caches.finish(beam.sequence)?;
        }
        found
    }

    /// `held` are the beams whose sequences are in the caches.
    fn search(&mut self, request: &Request, beams: Beams, held: &mut Vec<Beam>) -> Result<Vec<Hypothesis>> {
        let prompt = request.prompt.as_slice();
        let sequence = self.with_room(|caches| caches.admit(prompt.len() as u32))?;
        let sampler = Sampler::new(&request.sampling, prompt, prompt.len());
        held.push(Beam { tokens: prompt.to_vec(), score: 0.0, sequence, sampler, scores: Vec::new() });
        let chunk = usize::try_from(self.limits.max_num_tokens).unwrap_or(usize::MAX);
        for tokens in prompt.chunks(chunk) {
            self.step(held, tokens)?;
        }
        let mut done: Vec<Hypothesis> = Vec::new();
        for generated in 1.. {
            let length = (generated as f64).powf(f64::from(beams.length_penalty));
            let mut going = Vec::new();
            for (rank, step) in self.best(held, beams.width).into_iter().enumerate() {
                if self.eos.contains(&step.token) || generated == request.max_new_tokens {
                    // The others only make up the number of those that go on.
                    if rank < beams.width {
                        let mut tokens = held[step.beam].tokens[prompt.len()..].to_vec();
                        tokens.push(step.token);
                        done.push(Hypothesis { tokens, score: step.score / length });
                    }
                } else if going.len() < beams.width {
                    going.push(step);
                }
            }
            done.sort_by(|left, right| right.score.total_cmp(&left.score));
            done.truncate(beams.width);
            let worst = done.last().filter(|_| done.len() == beams.width);
            let improves = |step: &NextToken| worst.is_none_or(|worst| step.score / length > worst.score);
            if !going.first().is_some_and(improves) {
                break;
            }
            self.follow(held, &going)?;
            let tokens: Vec<u32> = going.iter().map(|step| step.token).collect();
            self.step(held, &tokens)?;
        }
        Ok(done)
    }

    /// The best next tokens of all beams: enough of them that as many as are followed do not end.
    fn best(&self, held: &[Beam], width: usize) -> Vec<NextToken> {
        let count = width * (1 + self.eos.len().max(1));
        let mut steps: Vec<NextToken> = held
            .iter()
            .enumerate()
            .flat_map(|(place, beam)| {
                let next = (0..).zip(&beam.scores);
                next.map(move |(token, score)| NextToken { beam: place, token, score: beam.score + score })
            })
            .collect();
        let order = |left: &NextToken, right: &NextToken| {
            right.score.total_cmp(&left.score).then((left.beam, left.token).cmp(&(right.beam, right.token)))
        };
        if count < steps.len() {
            steps.select_nth_unstable_by(count, order);
            steps.truncate(count);
        }
        steps.sort_unstable_by(order);
        steps
    }

    /// Lets each beam go the ways that were chosen: none, its own, or several.
    fn follow(&mut self, held: &mut Vec<Beam>, going: &[NextToken]) -> Result<()> {
        // Those that nothing goes on from make room first.
        let mut place = 0;
        let mut kept: Vec<Option<usize>> = Vec::new();
        for beam in 0..held.len() {
            let goes_on = going.iter().any(|step| step.beam == beam);
            kept.push(goes_on.then_some(place));
            if goes_on {
                place += 1;
            } else {
                let gone = held.remove(place);
                self.caches.finish(gone.sequence)?;
            }
        }
        let parents = held.len();
        let mut taken = vec![false; parents];
        let mut order = Vec::with_capacity(going.len());
        for step in going {
            let Some(parent) = kept[step.beam] else { continue };
            if std::mem::replace(&mut taken[parent], true) {
                let sequence = held[parent].sequence;
                let sequence = self.with_room(|caches| caches.fork(sequence))?;
                let fork = Beam { sequence, ..held[parent].clone() };
                order.push(held.len());
                held.push(fork);
            } else {
                order.push(parent);
            }
        }
        for (&place, step) in order.iter().zip(going) {
            held[place].score = step.score;
            held[place].tokens.push(step.token);
            held[place].sampler.push(step.token);
        }
        let mut ordered: Vec<Beam> = order.iter().map(|&place| held[place].clone()).collect();
        std::mem::swap(held, &mut ordered);
        Ok(())
    }

    /// Computes `tokens`: a chunk of the prompt of the only beam, or the last one of each.
    fn step(&mut self, held: &mut [Beam], tokens: &[u32]) -> Result<()> {
        let each = (tokens.len() / held.len()) as u32;
        let work: Vec<Work> = held.iter().map(|beam| Work { sequence: beam.sequence, tokens: each }).collect();
        let mut metadata = StepMetadata::default();
        self.with_room(|caches| caches.step(&work, &mut metadata))?;
        let rows: Vec<u32> = metadata.last_rows().collect();
        let logits = self.model.forward(tokens, &rows, self.caches, &metadata)?.to_device(&Device::Cpu)?;
        for (beam, logits) in held.iter_mut().zip(logits.to_vec2::<f32>()?) {
            let scores = log_probabilities(&logits).ok_or(RequestError::NotANumber { request: 0 })?;
            beam.scores = beam.sampler.penalised(&scores).iter().map(|&score| score.into()).collect();
        }
        Ok(())
    }

    /// Does what the pools may have no room for, until no cached prefix is left to make way.
    fn with_room<R>(&mut self, mut act: impl FnMut(&mut CacheManager) -> Result<R, ManagerError>) -> Result<R> {
        loop {
            let lack = match act(self.caches) {
                Err(ManagerError::Book(BookError::Lack(lack))) => lack,
                done => return Ok(done?),
            };
            let Self { caches, prefixes, .. } = self;
            let made = prefixes.as_mut().map(|prefixes| caches.with_book(|book| prefixes.make_room(book, &lack)));
            if !made.transpose()?.unwrap_or(false) {
                return Err(BookError::Lack(lack).into());
            }
        }
    }
}

/// Logits as logarithms of probabilities; `None` if they are no numbers.
fn log_probabilities(logits: &[f32]) -> Option<Vec<f32>> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !highest.is_finite() || logits.iter().any(|logit| logit.is_nan()) {
        return None;
    }
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - highest).exp()).sum();
    let all = f64::from(highest) + sum.ln();
    Some(logits.iter().map(|&logit| (f64::from(logit) - all) as f32).collect())
}
