//! Greedy generation: admits prompts, computes them in chunks, decodes, and makes room when the pools run out.

use std::collections::VecDeque;

use cacheplan_managers::ManagerError;
use cacheplan_managers::book::prefix::{Key, Namespace, TenantId};
use cacheplan_managers::book::{PrefixReuse, ReuseLease, SequenceId, StepMetadata, Work};
use cacheplan_managers::device::MambaHybridCacheManager;
use cacheplan_planner::Limits;
use candle_core::{Device, Tensor};

use crate::decoder::Decoder;
use crate::error::{RequestError, RuntimeError};

/// A prompt and how far to go on from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Token ids.
    pub prompt: Vec<u32>,
    /// The most tokens to generate; a token that ends texts ends them too, and is the last of them.
    pub max_new_tokens: usize,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Output {
    /// The generated tokens.
    pub tokens: Vec<u32>,
    /// `[tokens.len(), vocab_size]` on the CPU: the logits that each token was chosen from, if they were asked for.
    pub logits: Option<Tensor>,
    /// Tokens of the prompt whose caches were already there.
    pub cached_tokens: usize,
    /// Times that it lost its caches to make room and was computed again.
    pub preemptions: u32,
}

/// Serves requests with one decoder over one manager.
#[derive(Debug)]
pub(crate) struct Generator<'a> {
    decoder: &'a Decoder,
    caches: &'a mut MambaHybridCacheManager,
    prefixes: Option<&'a mut PrefixReuse>,
    limits: &'a Limits,
    /// Tokens that end a sequence.
    eos: &'a [u32],
    keep_logits: bool,
    waiting: VecDeque<Job>,
    running: Vec<Running>,
    metadata: StepMetadata,
    /// One for all requests: the session serves one model without adapters.
    namespace: Namespace,
}

/// A request on its way.
#[derive(Debug)]
struct Job {
    request: usize,
    /// The prompt and what was generated so far.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    max_new_tokens: usize,
    logits: Vec<Tensor>,
    /// What was cached when it was admitted first.
    cached_tokens: Option<usize>,
    preemptions: u32,
}

/// A job with caches.
#[derive(Debug)]
struct Running {
    job: Job,
    sequence: SequenceId,
    lease: Option<ReuseLease>,
    /// Tokens whose caches are there.
    computed: usize,
}

impl<'a> Generator<'a> {
    pub(crate) fn new(
        decoder: &'a Decoder,
        caches: &'a mut MambaHybridCacheManager,
        prefixes: Option<&'a mut PrefixReuse>,
        limits: &'a Limits,
        eos: &'a [u32],
        keep_logits: bool,
    ) -> Self {
        let (waiting, running, metadata, namespace) = Default::default();
        Self { decoder, caches, prefixes, limits, eos, keep_logits, waiting, running, metadata, namespace }
    }

    /// Serves all requests; outputs come in their order. No sequence is left in the caches, whatever happens; prefixes
    /// may be.
    pub(crate) fn run(&mut self, requests: &[Request]) -> Result<Vec<Output>, RuntimeError> {
        for (index, request) in requests.iter().enumerate() {
            self.check(index, request)?;
            self.waiting.push_back(Job::new(index, request));
        }
        let mut outputs: Vec<Option<Output>> = requests.iter().map(|_| None).collect();
        let served = self.serve(&mut outputs);
        while let Some(running) = self.running.pop() {
            self.vacate(running)?;
        }
        self.waiting.clear();
        served?;
        Ok(outputs.into_iter().flatten().collect())
    }

    fn check(&self, index: usize, request: &Request) -> Result<(), RequestError> {
        if request.prompt.is_empty() {
            return Err(RequestError::EmptyPrompt { request: index });
        }
        let vocab_size = self.decoder.vocab_size();
        if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(RequestError::Token { request: index, token, vocab_size });
        }
        if request.max_new_tokens == 0 {
            return Err(RequestError::NoNewTokens { request: index });
        }
        let (prompt, new) = (request.prompt.len(), request.max_new_tokens);
        if (prompt as u64).saturating_add(new as u64) > self.limits.max_seq_len {
            return Err(RequestError::TooLong { request: index, prompt, new, limit: self.limits.max_seq_len });
        }
        Ok(())
    }

    fn serve(&mut self, outputs: &mut [Option<Output>]) -> Result<(), RuntimeError> {
        loop {
            self.admit()?;
            if self.running.is_empty() {
                return Ok(());
            }
            let work = self.make_room()?;
            self.step(&work)?;
            self.retire(outputs)?;
        }
    }

    /// Takes in waiting jobs while sequences, tokens of a step, blocks and slots last.
    fn admit(&mut self) -> Result<(), RuntimeError> {
        while let Some(job) = self.waiting.front() {
            let busy = !self.running.is_empty();
            if busy && (self.running.len() as u64 >= self.limits.max_batch_size || self.schedule().1 == 0) {
                break;
            }
            let mut lease = None;
            let admitted = match &mut self.prefixes {
                Some(prefixes) => self.caches.admit_with(|book| {
                    let (sequence, held) = prefixes.admit(book, key(&self.namespace, &job.tokens), TenantId(0))?;
                    lease = Some(held);
                    Ok(sequence)
                }),
                None => self.caches.admit(job.tokens.len() as u32),
            };
            let sequence = match admitted {
                Ok(sequence) => sequence,
                Err(ManagerError::OutOfBlocks { .. } | ManagerError::OutOfSlots { .. }) if busy => break,
                Err(error) => return Err(error.into()),
            };
            if let Some(mut job) = self.waiting.pop_front() {
                let computed = lease.as_ref().map_or(0, ReuseLease::cached);
                job.cached_tokens.get_or_insert(computed);
                self.running.push(Running { job, sequence, lease, computed });
            }
        }
        Ok(())
    }

    /// Takes everything from a sequence.
    fn vacate(&mut self, Running { job, sequence, lease, .. }: Running) -> Result<Job, RuntimeError> {
        if let (Some(prefixes), Some(lease)) = (&mut self.prefixes, lease) {
            prefixes.abandon(lease)?;
        }
        self.caches.finish(sequence)?;
        Ok(job)
    }

    /// How many tokens of each running job the next step computes, and how many more it could.
    ///
    /// Decoding goes before prompts, so that a long prompt does not hold up those that are under way.
    fn schedule(&self) -> (Vec<usize>, usize) {
        let mut left = usize::try_from(self.limits.max_num_tokens).unwrap_or(usize::MAX);
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
        match (&self.prefixes, &running.lease) {
            (Some(prefixes), Some(lease)) => prefixes.next_tokens(lease, budget),
            _ => budget,
        }
    }

    /// Plans a step and reserves its blocks; where they do not suffice, the youngest job gives up its caches.
    fn make_room(&mut self) -> Result<Vec<usize>, RuntimeError> {
        loop {
            let (chunks, _) = self.schedule();
            let work: Vec<Work> = self
                .running
                .iter()
                .zip(&chunks)
                .filter(|&(_, &chunk)| chunk > 0)
                .map(|(running, &chunk)| Work { sequence: running.sequence, tokens: chunk as u32 })
                .collect();
            let lack = match self.caches.step(&work, &mut self.metadata) {
                Ok(()) => return Ok(chunks),
                Err(lack @ ManagerError::OutOfBlocks { .. }) => lack,
                Err(error) => return Err(error.into()),
            };
            let prefixes = self.prefixes.as_mut();
            let made_room = prefixes.map(|prefixes| self.caches.with_book(|book| prefixes.make_room(book, &lack)));
            if made_room.transpose()?.unwrap_or(false) {
                continue;
            }
            if self.running.len() == 1 {
                return Err(lack.into());
            }
            self.preempt_youngest()?;
        }
    }

    fn preempt_youngest(&mut self) -> Result<(), RuntimeError> {
        if let Some(running) = self.running.pop() {
            let mut job = self.vacate(running)?;
            job.preemptions += 1;
            tracing::debug!(request = job.request, tokens = job.tokens.len(), "preempted");
            self.waiting.push_front(job);
        }
        Ok(())
    }

    /// Runs the step and appends a token to each job whose tokens are all computed.
    fn step(&mut self, chunks: &[usize]) -> Result<(), RuntimeError> {
        let (mut tokens, mut rows, mut complete) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (running, &chunk)) in self.running.iter_mut().zip(chunks).enumerate() {
            tokens.extend_from_slice(&running.job.tokens[running.computed..][..chunk]);
            running.computed += chunk;
            if chunk > 0 && running.pending() == 0 {
                rows.push(tokens.len() as u32 - 1);
                complete.push(index);
            }
        }
        let logits = self.decoder.forward(&tokens, &rows, self.caches, &self.metadata)?.to_device(&Device::Cpu)?;
        if let Some(prefixes) = &mut self.prefixes {
            for (Running { job, sequence, lease, computed }, _) in
                self.running.iter_mut().zip(chunks).filter(|(_, chunk)| **chunk > 0)
            {
                if let Some(lease) = lease {
                    let computed = key(&self.namespace, &job.tokens[..*computed]);
                    self.caches.with_book(|book| prefixes.computed(book, *sequence, lease, computed))?;
                }
            }
        }
        for (row, index) in complete.into_iter().enumerate() {
            let job = &mut self.running[index].job;
            let logits = logits.get(row)?;
            job.tokens.push(greedy(&logits.to_vec1()?).ok_or(RequestError::NotANumber { request: job.request })?);
            if self.keep_logits {
                job.logits.push(logits);
            }
        }
        Ok(())
    }

    /// Moves finished jobs to their outputs and frees their caches.
    fn retire(&mut self, outputs: &mut [Option<Output>]) -> Result<(), RuntimeError> {
        let eos = self.eos;
        let (finished, running): (Vec<_>, Vec<_>) =
            self.running.drain(..).partition(|running| running.job.is_finished(eos));
        self.running = running;
        for Running { job, sequence, lease, computed } in finished {
            match (&mut self.prefixes, lease) {
                (Some(prefixes), Some(lease)) => {
                    let computed = key(&self.namespace, &job.tokens[..computed]);
                    self.caches.with_book(|book| prefixes.finish(book, sequence, lease, computed))?;
                }
                _ => self.caches.finish(sequence)?,
            }
            let request = job.request;
            outputs[request] = Some(job.into_output()?);
        }
        Ok(())
    }
}

fn key<'a>(namespace: &'a Namespace, tokens: &'a [u32]) -> Key<'a> {
    Key { namespace, tokens }
}

impl Running {
    /// Tokens whose caches are not there yet.
    fn pending(&self) -> usize {
        self.job.tokens.len() - self.computed
    }
}

impl Job {
    fn new(request: usize, Request { prompt, max_new_tokens }: &Request) -> Self {
        Self {
            request,
            tokens: prompt.clone(),
            prompt_tokens: prompt.len(),
            max_new_tokens: *max_new_tokens,
            logits: Vec::new(),
            cached_tokens: None,
            preemptions: 0,
        }
    }

    fn is_finished(&self, eos: &[u32]) -> bool {
        let generated = self.generated();
        generated.len() >= self.max_new_tokens || generated.last().is_some_and(|token| eos.contains(token))
    }

    fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens..]
    }

    fn into_output(self) -> Result<Output, RuntimeError> {
        let logits = if self.logits.is_empty() { None } else { Some(Tensor::stack(&self.logits, 0)?) };
        Ok(Output {
            tokens: self.generated().to_vec(),
            logits,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            preemptions: self.preemptions,
        })
    }
}

/// The place of the largest logit, the first of several; `None` if one of them is not a number.
fn greedy(logits: &[f32]) -> Option<u32> {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit.is_nan() {
            return None;
        }
        if logit > best.1 {
            best = (token, logit);
        }
    }
    Some(best.0 as u32)
}

#[cfg(test)]
mod tests {
    use super::greedy;

    #[test]
    fn the_first_of_equal_logits_wins() {
        assert_eq!(greedy(&[0.5, 2.0, 2.0]), Some(1));
    }

    #[test]
    fn logits_that_are_no_numbers_choose_nothing() {
        assert_eq!(greedy(&[0.5, f32::NAN, 2.0]), None);
    }
}
