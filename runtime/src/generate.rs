//! Generation: admits prompts, computes them in chunks, decodes, and makes room when the pools run out.

mod disk;
mod guess;
mod make_way;
mod shares;
mod step;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cacheplan_managers::book::{SequenceId, StepMetadata};
use cacheplan_managers::device::{CacheManager, PrefixFiles};
use cacheplan_managers::prefix::{Key, Namespace, PrefixReuse, ReuseLease, TenantId};
use cacheplan_managers::{BookError, ManagerError};
use cacheplan_planner::Limits;
use candle_core::Tensor;

use crate::costs::Costs;
use crate::decoder::Decoder;
use crate::draft_model::DraftModel;
use crate::error::{RequestError, Result, RuntimeError};
use crate::follow::{Admission, Follow};
use crate::request::{Finish, Output, Request, Times};
use crate::sampling::Sampler;
use crate::speculate::{Guesses, Lookup};
use crate::speed::Recorder;

/// The longest that nobody looks whether requests are still wanted.
const NAP: Duration = Duration::from_millis(20);

/// Serves requests with one model over one manager.
pub(crate) struct Generator<'a, 'b> {
    serving: Serving<'a, 'b>,
    waiting: VecDeque<Job>,
    running: Vec<Running>,
    metadata: StepMetadata,
    costs: Costs,
    /// One for all requests: the session serves one model without adapters.
    namespace: Namespace,
    begun: Instant,
}

/// What requests are served with.
pub(crate) struct Serving<'a, 'b> {
    pub(crate) model: &'a Decoder,
    /// Who guesses; prompts are looked up without one.
    pub(crate) draft: Option<&'a DraftModel>,
    pub(crate) caches: &'a mut CacheManager,
    pub(crate) prefixes: Option<&'a mut PrefixReuse>,
    /// Where prefixes outlive the process.
    pub(crate) disk: Option<&'a mut PrefixFiles>,
    pub(crate) limits: &'a Limits,
    /// The most tokens of prompts beside a sequence that decodes.
    pub(crate) max_prefill: usize,
    /// Whether guesses that are looked up branch.
    pub(crate) tree: bool,
    /// Tokens that end a sequence.
    pub(crate) eos: &'a [u32],
    pub(crate) keep_logits: bool,
    pub(crate) follower: &'a mut dyn Follow,
    pub(crate) recorder: &'a mut Recorder<'b>,
}

/// A request on its way.
#[derive(Debug)]
struct Job {
    /// Its place among the requests.
    place: usize,
    request: Request,
    /// The prompt and what was generated so far.
    tokens: Vec<u32>,
    /// Chooses what comes behind them.
    sampler: Sampler,
    /// Guesses what comes behind them.
    lookup: Lookup,
    /// Where trees were verified, what a chain would have guessed there.
    chains: Vec<(usize, Vec<u32>)>,
    logits: Vec<Tensor>,
    /// What the model's prediction layer says behind the last token.
    predicted: Option<Predicted>,
    /// What was cached when it was admitted first.
    cached_tokens: Option<usize>,
    preemptions: u32,
    /// Where its caches are, if they wait in host memory.
    offloaded: Option<Offloaded>,
    admitted: Option<Duration>,
    first_token: Option<Duration>,
    last_token: Duration,
    /// Why it has ended.
    finish: Option<Finish>,
    /// What has ended it, where that is an error.
    error: Option<RequestError>,
}

/// What a prediction layer says behind a token.
#[derive(Clone, Debug)]
struct Predicted {
    /// `[vocab_size]` on the CPU.
    logits: Tensor,
    /// `[1, hidden]`, from which it goes on.
    hidden: Tensor,
}

/// A sequence in host memory.
#[derive(Clone, Copy, Debug)]
struct Offloaded {
    sequence: SequenceId,
    bytes: u64,
    /// Tokens whose caches are there.
    computed: usize,
}

/// What a step computes of a running job.
#[derive(Clone, Debug, Default)]
struct Part {
    /// Tokens that are known.
    tokens: usize,
    /// Tokens that are guessed to follow.
    drafts: Guesses,
    /// What a chain would have guessed in place of a tree.
    chain: Option<Vec<u32>>,
}

impl Part {
    fn drafts(&self) -> usize {
        self.drafts.tokens.len()
    }
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

impl<'a, 'b> Generator<'a, 'b> {
    pub(crate) fn new(serving: Serving<'a, 'b>) -> Self {
        let (waiting, running, metadata, costs, namespace) = Default::default();
        Self { serving, waiting, running, metadata, costs, namespace, begun: Instant::now() }
    }

    /// Serves all requests; outputs come in their order. No sequence is left in the caches, whatever happens; prefixes
    /// may be.
    pub(crate) fn run(&mut self, requests: &[Request]) -> Result<Vec<Output>> {
        for (place, request) in requests.iter().enumerate() {
            request.check(place, self.serving.model.vocab_size(), self.serving.limits.max_seq_len)?;
        }
        let _span = tracing::debug_span!("generation", requests = requests.len()).entered();
        let mut jobs: Vec<Job> = requests.iter().enumerate().map(|(place, request)| Job::new(place, request)).collect();
        jobs.sort_by_key(|job| job.request.arrival);
        self.waiting.extend(jobs);
        let mut outputs: Vec<Option<Output>> = requests.iter().map(|_| None).collect();
        let served = self.serve(&mut outputs);
        while let Some(running) = self.running.pop() {
            let job = self.vacate(running)?;
            if served.is_ok() {
                self.deliver(job, &mut outputs)?;
            }
        }
        for job in std::mem::take(&mut self.waiting) {
            self.forget_offloaded(&job)?;
            if served.is_ok() && job.admitted.is_some() {
                self.deliver(job, &mut outputs)?;
            }
        }
        served?;
        Ok(outputs.into_iter().map(Option::unwrap_or_default).collect())
    }

    fn serve(&mut self, outputs: &mut [Option<Output>]) -> Result<()> {
        loop {
            match self.serving.follower.admission() {
                Admission::Open => {}
                Admission::Closed => self.waiting.retain(|job| job.admitted.is_some()),
                Admission::Abandoned => return Ok(()),
            }
            self.cancel_unwanted(outputs)?;
            tracing::debug_span!("admission", waiting = self.waiting.len()).in_scope(|| self.admit(outputs))?;
            if self.running.is_empty() {
                let Some(next) = self.waiting.front() else { return Ok(()) };
                std::thread::sleep(next.request.arrival.saturating_sub(self.now()).min(NAP));
                continue;
            }
            let _span = tracing::debug_span!("step", sequences = self.running.len()).entered();
            let mut parts = tracing::debug_span!("scheduling").in_scope(|| self.make_room())?;
            tracing::debug_span!("guessing").in_scope(|| self.guess(&mut parts))?;
            self.step(&parts)?;
            tracing::debug_span!("retirement").in_scope(|| self.retire(outputs))?;
            let (now, running) = (self.now(), self.running.len());
            let waiting = self.waiting.iter().filter(|job| job.request.arrival <= now).count();
            self.serving.recorder.step(now, running, waiting, self.serving.caches.book());
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Ends the jobs that have begun and that nobody wants any more.
    fn cancel_unwanted(&mut self, outputs: &mut [Option<Output>]) -> Result<()> {
        let follower = &mut *self.serving.follower;
        let unwanted: Vec<Running> =
            self.running.extract_if(.., |running| !follower.wants(running.job.place)).collect();
        for running in unwanted {
            let job = self.vacate(running)?;
            self.deliver(job, outputs)?;
        }
        // Those that made way wait before all others.
        for at in (0..self.waiting.iter().take_while(|job| job.admitted.is_some()).count()).rev() {
            self.cancel_waiting(at, outputs)?;
        }
        Ok(())
    }

    /// Ends a waiting job unless it is wanted; whether it is gone.
    fn cancel_waiting(&mut self, at: usize, outputs: &mut [Option<Output>]) -> Result<bool> {
        if self.waiting.get(at).is_none_or(|job| self.serving.follower.wants(job.place)) {
            return Ok(false);
        }
        if let Some(job) = self.waiting.remove(at) {
            self.forget_offloaded(&job)?;
            self.deliver(job, outputs)?;
        }
        Ok(true)
    }

    /// Takes in waiting jobs while sequences, tokens of a step, blocks and slots last.
    fn admit(&mut self, outputs: &mut [Option<Output>]) -> Result<()> {
        let now = self.now();
        while let Some(job) = self.waiting.front().filter(|job| job.request.arrival <= now) {
            if job.admitted.is_none() && self.cancel_waiting(0, outputs)? {
                continue;
            }
            let busy = !self.running.is_empty();
            if busy
                && (self.running.len() as u64 >= self.serving.limits.max_batch_size
                    || self.schedule().left_for_prompts == 0)
            {
                break;
            }
            let Some(mut job) = self.waiting.pop_front() else { break };
            let entered = match job.offloaded {
                Some(offloaded) => self.bring_back(&job, offloaded),
                None => self.enter(&job),
            };
            match entered {
                Ok((sequence, lease, computed)) => {
                    job.offloaded = None;
                    match job.cached_tokens {
                        None => job.cached_tokens = Some(computed),
                        Some(_) => self.serving.recorder.returned(computed),
                    }
                    job.admitted.get_or_insert(now);
                    self.running.push(Running { job, sequence, lease, computed });
                }
                Err(error) => {
                    self.waiting.push_front(job);
                    match error {
                        RuntimeError::Manager(ManagerError::Book(BookError::Lack(_))) if busy => break,
                        error => return Err(error),
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives a job caches, with what is cached of its tokens.
    fn enter(&mut self, job: &Job) -> Result<(SequenceId, Option<ReuseLease>, usize)> {
        if let Some((sequence, lease, computed)) = self.enter_from_file(job)? {
            self.serving.recorder.computes(job.tokens.len() - computed);
            return Ok((sequence, lease, computed));
        }
        let Serving { caches, prefixes, .. } = &mut self.serving;
        let prompt = Key { namespace: &self.namespace, tokens: &job.tokens };
        let tenant = TenantId(job.request.tenant);
        let lease = prefixes.as_mut().map(|prefixes| caches.admit_reusing(prefixes, prompt, tenant)).transpose()?;
        let sequence = match &lease {
            Some(lease) => lease.sequence(),
            None => caches.admit(job.tokens.len() as u32)?,
        };
        let computed = lease.as_ref().map_or(0, ReuseLease::cached);
        self.serving.recorder.computes(job.tokens.len() - computed);
        Ok((sequence, lease, computed))
    }

    /// Takes everything from a sequence.
    fn vacate(&mut self, Running { job, sequence, lease, .. }: Running) -> Result<Job> {
        if let (Some(prefixes), Some(lease)) = (&mut self.serving.prefixes, lease) {
            prefixes.abandon(lease)?;
        }
        self.serving.caches.finish(sequence)?;
        Ok(job)
    }

    /// Moves finished jobs to their outputs and frees their caches.
    fn retire(&mut self, outputs: &mut [Option<Output>]) -> Result<()> {
        let (finished, running): (Vec<_>, Vec<_>) =
            self.running.drain(..).partition(|running| running.job.finish.is_some());
        self.running = running;
        for running in finished {
            Self::leave_in_file(&mut self.serving, &running)?;
            let Running { job, sequence, lease, .. } = running;
            let Serving { caches, prefixes, .. } = &mut self.serving;
            match (prefixes, lease) {
                // What has led to an error serves nobody.
                (Some(prefixes), Some(lease)) if job.error.is_some() => {
                    prefixes.abandon(lease)?;
                    caches.finish(sequence)?;
                }
                (Some(prefixes), Some(lease)) => caches.with_book(|book| prefixes.finish(book, lease))?,
                _ => caches.finish(sequence)?,
            }
            self.deliver(job, outputs)?;
        }
        Ok(())
    }

    fn deliver(&mut self, job: Job, outputs: &mut [Option<Output>]) -> Result<()> {
        for (start, chain) in &job.chains {
            let right = job.tokens[*start..].iter().zip(chain).take_while(|(token, guess)| token == guess).count();
            self.serving.recorder.chained(chain.len(), right);
        }
        let (place, output) = (job.place, job.into_output(self.now())?);
        self.serving.recorder.finished(&output);
        self.serving.follower.finished(place, &output);
        outputs[place] = Some(output);
        Ok(())
    }
}

impl Running {
    /// Tokens whose caches are not there yet.
    fn pending(&self) -> usize {
        self.job.tokens.len() - self.computed
    }
}

impl Job {
    fn new(place: usize, request: &Request) -> Self {
        let (logits, last_token) = Default::default();
        Self {
            place,
            request: request.clone(),
            tokens: request.prompt.clone(),
            sampler: Sampler::new(&request.sampling, &request.prompt, request.prompt.len()),
            lookup: Lookup::default(),
            chains: Vec::new(),
            logits,
            predicted: None,
            cached_tokens: None,
            preemptions: 0,
            offloaded: None,
            admitted: None,
            first_token: None,
            last_token,
            finish: None,
            error: None,
        }
    }

    fn generated(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }

    fn into_output(self, now: Duration) -> Result<Output> {
        let logits = if self.logits.is_empty() { None } else { Some(Tensor::stack(&self.logits, 0)?) };
        let since_arrival = |at: Duration| at.saturating_sub(self.request.arrival);
        Ok(Output {
            tokens: self.generated().to_vec(),
            logits,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            preemptions: self.preemptions,
            finish: self.finish.unwrap_or(Finish::Cancelled),
            error: self.error,
            times: Times {
                queued: self.admitted.map(since_arrival),
                first_token: self.first_token.map(since_arrival),
                total: Some(since_arrival(now)),
            },
        })
    }
}
