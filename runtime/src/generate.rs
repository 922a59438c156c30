//! Generation: admits prompts, computes them in chunks, decodes, and makes room when the pools run out.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use cacheplan_managers::book::{
    Accepted, Key, Namespace, PrefixReuse, ReuseLease, SequenceId, StepMetadata, TenantId, Work,
};
use cacheplan_managers::device::MambaHybridCacheManager;
use cacheplan_managers::{BookError, ManagerError};
use cacheplan_planner::Limits;
use candle_core::{Device, Tensor};

use crate::costs::{Costs, Way};
use crate::decoder::Decoder;
use crate::draft_model::{Candidate, DraftModel, one_each};
use crate::error::{RequestError, RuntimeError};
use crate::follow::{Admission, Follow};
use crate::request::{Finish, Output, Request, Times};
use crate::speculate::look_up;
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
    pub(crate) caches: &'a mut MambaHybridCacheManager,
    pub(crate) prefixes: Option<&'a mut PrefixReuse>,
    pub(crate) limits: &'a Limits,
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
    drafts: Vec<u32>,
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
    pub(crate) fn run(&mut self, requests: &[Request]) -> Result<Vec<Output>, RuntimeError> {
        for (place, request) in requests.iter().enumerate() {
            request.check(place, self.serving.model.vocab_size(), self.serving.limits.max_seq_len)?;
        }
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

    fn serve(&mut self, outputs: &mut [Option<Output>]) -> Result<(), RuntimeError> {
        loop {
            match self.serving.follower.admission() {
                Admission::Open => {}
                Admission::Closed => self.waiting.retain(|job| job.admitted.is_some()),
                Admission::Abandoned => return Ok(()),
            }
            self.cancel_unwanted(outputs)?;
            self.admit(outputs)?;
            if self.running.is_empty() {
                let Some(next) = self.waiting.front() else { return Ok(()) };
                std::thread::sleep(next.request.arrival.saturating_sub(self.now()).min(NAP));
                continue;
            }
            let mut parts = self.make_room()?;
            self.guess(&mut parts)?;
            self.step(&parts)?;
            self.retire(outputs)?;
            let (now, running) = (self.now(), self.running.len());
            let waiting = self.waiting.iter().filter(|job| job.request.arrival <= now).count();
            self.serving.recorder.step(now, running, waiting, self.serving.caches.book());
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Ends the jobs that have begun and that nobody wants any more.
    fn cancel_unwanted(&mut self, outputs: &mut [Option<Output>]) -> Result<(), RuntimeError> {
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
    fn cancel_waiting(&mut self, at: usize, outputs: &mut [Option<Output>]) -> Result<bool, RuntimeError> {
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
    fn admit(&mut self, outputs: &mut [Option<Output>]) -> Result<(), RuntimeError> {
        let now = self.now();
        while let Some(job) = self.waiting.front().filter(|job| job.request.arrival <= now) {
            if job.admitted.is_none() && self.cancel_waiting(0, outputs)? {
                continue;
            }
            let busy = !self.running.is_empty();
            if busy && (self.running.len() as u64 >= self.serving.limits.max_batch_size || self.schedule().1 == 0) {
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
                    job.cached_tokens.get_or_insert(computed);
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
    fn enter(&mut self, job: &Job) -> Result<(SequenceId, Option<ReuseLease>, usize), RuntimeError> {
        let mut lease = None;
        let Serving { caches, prefixes, .. } = &mut self.serving;
        let sequence = match prefixes {
            Some(prefixes) => caches.admit_with(|book| {
                let prompt = Key { namespace: &self.namespace, tokens: &job.tokens };
                let tenant = TenantId(job.request.tenant);
                Ok(lease.insert(prefixes.admit(book, prompt, tenant)?).sequence())
            })?,
            None => caches.admit(job.tokens.len() as u32)?,
        };
        let computed = lease.as_ref().map_or(0, ReuseLease::cached);
        self.serving.recorder.computes(job.tokens.len() - computed);
        Ok((sequence, lease, computed))
    }

    /// Brings the caches of a job back from host memory; prefixes that nobody uses make way.
    fn bring_back(
        &mut self,
        job: &Job,
        Offloaded { sequence, bytes, computed }: Offloaded,
    ) -> Result<(SequenceId, Option<ReuseLease>, usize), RuntimeError> {
        let Serving { caches, prefixes, .. } = &mut self.serving;
        let time = loop {
            let begun = Instant::now();
            let lack = match caches.onload(sequence) {
                Ok(()) => break begun.elapsed(),
                Err(ManagerError::Book(BookError::Lack(lack))) => lack,
                Err(error) => return Err(error.into()),
            };
            let made_room = prefixes.as_mut().map(|prefixes| caches.with_book(|book| prefixes.make_room(book, &lack)));
            if !made_room.transpose()?.unwrap_or(false) {
                return Err(ManagerError::Book(BookError::Lack(lack)).into());
            }
        };
        self.costs.copied(bytes, time);
        let tokens = Key { namespace: &self.namespace, tokens: &job.tokens };
        let tenant = TenantId(job.request.tenant);
        let lease = prefixes.as_mut().map(|prefixes| prefixes.rejoin(caches.book(), sequence, tokens, tenant));
        Ok((sequence, lease.transpose()?, computed))
    }

    /// Gives up the caches that a job has in host memory.
    fn forget_offloaded(&mut self, job: &Job) -> Result<(), RuntimeError> {
        match job.offloaded {
            Some(offloaded) => Ok(self.serving.caches.finish(offloaded.sequence)?),
            None => Ok(()),
        }
    }

    /// Takes everything from a sequence.
    fn vacate(&mut self, Running { job, sequence, lease, .. }: Running) -> Result<Job, RuntimeError> {
        if let (Some(prefixes), Some(lease)) = (&mut self.serving.prefixes, lease) {
            prefixes.abandon(lease)?;
        }
        self.serving.caches.finish(sequence)?;
        Ok(job)
    }

    /// How many tokens of each running job the next step computes, and how many more it could.
    ///
    /// Decoding goes before prompts, so that a long prompt does not hold up those that are under way.
    fn schedule(&self) -> (Vec<usize>, usize) {
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
    fn parts(&self, drafting: bool) -> Vec<Part> {
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

    /// How many tokens behind the known ones a step may verify: no more than are wanted, nor beyond where a state is kept.
    fn most_drafts(&self, Running { job, lease, .. }: &Running) -> usize {
        let planned = self.serving.limits.draft_positions.saturating_sub(1) as usize;
        let wanted = job.request.max_new_tokens - job.generated().len();
        let most = planned.min(wanted.saturating_sub(1));
        match (&self.serving.prefixes, lease) {
            (Some(prefixes), Some(lease)) => prefixes.next_tokens(lease, most + 1).saturating_sub(1),
            _ => most,
        }
    }

    /// Plans a step and reserves its blocks; where they do not suffice, it guesses nothing, and then the youngest job
    /// gives up its caches.
    fn make_room(&mut self) -> Result<Vec<Part>, RuntimeError> {
        let mut drafting = self.serving.limits.draft_positions > 1;
        loop {
            let parts = self.parts(drafting);
            let work: Vec<Work> = self
                .running
                .iter()
                .zip(&parts)
                .filter(|(_, part)| part.tokens > 0)
                .map(|(running, part)| Work {
                    sequence: running.sequence,
                    tokens: (part.tokens + part.drafts.len()) as u32,
                })
                .collect();
            let drafts = parts.iter().any(|part| !part.drafts.is_empty());
            let planned = match drafts {
                true => self.serving.caches.speculate(&work, &mut self.metadata),
                false => self.serving.caches.step(&work, &mut self.metadata),
            };
            let lack = match planned {
                Ok(()) => return Ok(parts),
                Err(ManagerError::Book(BookError::Lack(_))) if drafts => {
                    drafting = false;
                    continue;
                }
                Err(ManagerError::Book(BookError::Lack(lack))) => lack,
                Err(error) => return Err(error.into()),
            };
            let Serving { caches, prefixes, .. } = &mut self.serving;
            let made_room = prefixes.as_mut().map(|prefixes| caches.with_book(|book| prefixes.make_room(book, &lack)));
            if made_room.transpose()?.unwrap_or(false) {
                continue;
            }
            if self.running.len() == 1 {
                return Err(BookError::Lack(lack).into());
            }
            self.preempt_youngest()?;
        }
    }

    fn preempt_youngest(&mut self) -> Result<(), RuntimeError> {
        if let Some(running) = self.running.pop() {
            let mut job = match self.cheaper(&running)? {
                Way::Host => self.offload(running)?,
                Way::Recompute => self.vacate(running)?,
            };
            job.preemptions += 1;
            let offloaded = job.offloaded.is_some();
            tracing::debug!(request = job.place, tokens = job.tokens.len(), offloaded, "preempted");
            self.waiting.push_front(job);
        }
        Ok(())
    }

    /// How a job would come back sooner, as far as its plan has a choice.
    fn cheaper(&self, running: &Running) -> Result<Way, RuntimeError> {
        let Serving { caches, prefixes, .. } = &self.serving;
        if caches.book().layout().host_bytes.is_none() || running.computed == 0 {
            return Ok(Way::Recompute);
        }
        let tokens = Key { namespace: &self.namespace, tokens: &running.job.tokens[..running.computed] };
        let cached = prefixes.as_ref().map_or(0, |prefixes| prefixes.tree().match_prefix(tokens).hit);
        Ok(self.costs.cheaper(running.computed - cached, caches.book().bytes_to_park(running.sequence)?))
    }

    /// Moves the caches of a job to host memory; without room there they are given up.
    fn offload(&mut self, mut running: Running) -> Result<Job, RuntimeError> {
        let Running { sequence, computed, .. } = running;
        let bytes = self.serving.caches.book().bytes_to_park(sequence)?;
        let begun = Instant::now();
        match self.serving.caches.offload(sequence) {
            Ok(()) => {}
            Err(ManagerError::Book(BookError::Lack(_))) => return self.vacate(running),
            Err(error) => return Err(error.into()),
        }
        self.costs.copied(bytes, begun.elapsed());
        self.serving.recorder.offloaded();
        // What it shares with prefixes must not be held while it is gone.
        if let (Some(prefixes), Some(lease)) = (&mut self.serving.prefixes, running.lease.take()) {
            prefixes.abandon(lease)?;
        }
        Ok(Job { offloaded: Some(Offloaded { sequence, bytes, computed }), ..running.job })
    }

    /// Whether the model's own prediction layer guesses.
    fn predicts(&self) -> bool {
        self.serving.draft.is_none() && self.serving.model.prediction().is_some()
    }

    /// Lets a draft model or the model's own layer make the guesses that there is room for, each drawn as the model's own
    /// token at its place will be, so that models which agree draw alike.
    fn guess(&mut self, parts: &mut [Part]) -> Result<(), RuntimeError> {
        let Serving { model, caches, draft, .. } = &self.serving;
        if draft.is_none() && !self.predicts() {
            return Ok(());
        }
        let hidden = |running: &Running| running.job.predicted.as_ref().map(|predicted| predicted.hidden.clone());
        let mut hidden: Vec<Option<Tensor>> = self.running.iter().map(hidden).collect();
        for place in 0..parts.iter().map(|part| part.drafts.len()).max().unwrap_or(0) {
            // Who guesses one more token has caches of what is before it.
            let guessing = parts.iter().enumerate().filter(|(_, part)| part.drafts.len() > place);
            let candidates: Vec<Candidate> = guessing
                .map(|(sequence, part)| {
                    let known = self.running[sequence].job.tokens.last().copied().unwrap_or(0);
                    Candidate { sequence, place, token: if place == 0 { known } else { part.drafts[place - 1] } }
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
                let Job { request, tokens, .. } = &self.running[*sequence].job;
                let known = [&tokens[..], &parts[*sequence].drafts[..place]].concat();
                let choice = request.sampling.choose(&logits.get(row)?.to_vec1()?, &known, request.prompt.len());
                // One that is no number is a bad guess, and no more.
                parts[*sequence].drafts[place] = choice.unwrap_or(0);
            }
        }
        Ok(())
    }

    /// Lets the model's own layer go over a step that the model has made: `hidden` are its rows, `starts` the tokens that
    /// each job had before.
    fn predict(&mut self, parts: &[Part], starts: &[usize], hidden: &Tensor) -> Result<(), RuntimeError> {
        let (mut next, mut rows, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (part, start)) in parts.iter().zip(starts).enumerate().filter(|(_, (part, _))| part.tokens > 0) {
            let tokens = &self.running[index].job.tokens;
            let count = part.tokens + part.drafts.len();
            let known = count.min(tokens.len() - start - 1);
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
    fn catch_up(&self, parts: &[Part], accepted: &[(SequenceId, Accepted<'_>)]) -> Result<(), RuntimeError> {
        let Serving { caches, draft: Some(draft), .. } = &self.serving else { return Ok(()) };
        let behind = parts.iter().zip(accepted).enumerate().filter_map(|(sequence, (part, (_, right)))| {
            let place = part.drafts.len();
            let known = &self.running[sequence].job.tokens[self.running[sequence].computed..];
            let token = part.drafts.last().or(known.first()).copied()?;
            (*right == Accepted::First(place as u32 + 1)).then_some(Candidate { sequence, place, token })
        });
        let behind: Vec<Candidate> = behind.collect();
        if !behind.is_empty() {
            draft.next(&behind, caches, &self.metadata)?;
        }
        Ok(())
    }

    /// Runs the step and appends a token to each job whose tokens are all computed, and more where guesses were right.
    fn step(&mut self, parts: &[Part]) -> Result<(), RuntimeError> {
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

    /// Moves finished jobs to their outputs and frees their caches.
    fn retire(&mut self, outputs: &mut [Option<Output>]) -> Result<(), RuntimeError> {
        let (finished, running): (Vec<_>, Vec<_>) =
            self.running.drain(..).partition(|running| running.job.finish.is_some());
        self.running = running;
        for Running { job, sequence, lease, .. } in finished {
            let Serving { caches, prefixes, .. } = &mut self.serving;
            match (prefixes, lease) {
                (Some(prefixes), Some(lease)) => caches.with_book(|book| prefixes.finish(book, lease))?,
                _ => caches.finish(sequence)?,
            }
            self.deliver(job, outputs)?;
        }
        Ok(())
    }

    fn deliver(&mut self, job: Job, outputs: &mut [Option<Output>]) -> Result<(), RuntimeError> {
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
            logits,
            predicted: None,
            cached_tokens: None,
            preemptions: 0,
            offloaded: None,
            admitted: None,
            first_token: None,
            last_token,
            finish: None,
        }
    }

    fn generated(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }

    fn into_output(self, now: Duration) -> Result<Output, RuntimeError> {
        let logits = if self.logits.is_empty() { None } else { Some(Tensor::stack(&self.logits, 0)?) };
        let since_arrival = |at: Duration| at.saturating_sub(self.request.arrival);
        Ok(Output {
            tokens: self.generated().to_vec(),
            logits,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            preemptions: self.preemptions,
            finish: self.finish.unwrap_or(Finish::Cancelled),
            times: Times {
                queued: self.admitted.map(since_arrival),
                first_token: self.first_token.map(since_arrival),
                total: Some(since_arrival(now)),
            },
        })
    }
}
