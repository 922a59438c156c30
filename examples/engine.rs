//! An engine's loop with everything in it: planned pools, prefix reuse, chunked prefill, decoding and preemption.
//!
//! Run it with `cargo run --example engine`. No model runs here: where the forward would be, tokens are made up.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::VecDeque;

use cacheplan::candle::Device;
use cacheplan::managers::book::{StepMetadata, Work};
use cacheplan::managers::device::{CacheManager, CacheSet};
use cacheplan::managers::prefix::{Key, Namespace, PrefixReuse, ReuseLease, Strategy, TenantId, Token};
use cacheplan::managers::{BookError, ManagerError};
use cacheplan::planner::{Budget, PlanRequest};
use cacheplan::transforms::{Model, ReadOptions};

const SMALL_HYBRID: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/nemotron_h/config.json");

/// Planned for short answers, so that some must make way; slots for states that outlive their sequences.
const BUDGET: &str = "
max_seq_len = 512
max_batch_size = 4
max_num_tokens = 128
tokens_per_block = 16
[memory]
bytes = '400KiB'
[workload]
checkpoints_per_sequence = 2
prompt = { fixed = 140 }
output = { fixed = 20 }
";

/// A request, with all tokens that are known of it: its prompt, and what was decoded.
struct Job {
    name: u32,
    tokens: Vec<Token>,
    /// How many tokens it has at its end.
    end: usize,
}

struct Running {
    job: Job,
    lease: ReuseLease,
    computed: usize,
}

struct Engine<'a> {
    manager: &'a mut CacheManager,
    reuse: PrefixReuse,
    namespace: Namespace,
    waiting: VecDeque<Job>,
    running: Vec<Running>,
    batch: usize,
    budget: usize,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let budget = Budget::from_toml(BUDGET, "budget.toml")?;
    let model = Model::read(SMALL_HYBRID.as_ref(), &ReadOptions::default())?;
    let plan = PlanRequest::of(model).with_budget(budget).plan()?;
    println!("{}", plan.table());

    let mut caches = CacheSet::allocate(&plan, &Device::Cpu)?;
    let reuse = caches.prefix_reuse(Strategy::complete(Some(64)))?;
    // Six users of one system prompt of 100 tokens.
    let ask = |name: u32| Job { name, tokens: (0..100).chain([1000 + name; 40]).collect(), end: 360 };
    let mut engine = Engine {
        manager: caches.manager_mut()?,
        reuse,
        namespace: Namespace::default(),
        waiting: (0..6).map(ask).collect(),
        running: Vec::new(),
        batch: plan.limits.max_batch_size as usize,
        budget: plan.limits.max_num_tokens as usize,
    };
    while !engine.is_done() {
        engine.admit()?;
        engine.step()?;
    }
    println!("\ntoken hit rate {:.2}\n{}", engine.reuse.metrics().hit_rate(), engine.manager.book().stats());
    Ok(())
}

impl Engine<'_> {
    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes in jobs while there is room.
    fn admit(&mut self) -> Result<(), ManagerError> {
        while self.running.len() < self.batch
            && let Some(job) = self.waiting.pop_front()
        {
            let Self { manager, reuse, namespace, .. } = self;
            let mut held = None;
            let admitted = manager.admit_with(|book| {
                let prompt = Key { namespace, tokens: &job.tokens };
                Ok(held.insert(reuse.admit(book, prompt, TenantId(0))?).sequence())
            });
            match (admitted, held) {
                (Ok(_), Some(mut lease)) => {
                    // Where those that wait turn off from this prompt, a state is kept for them.
                    for other in &self.waiting {
                        self.reuse.expect(&mut lease, Key { namespace: &self.namespace, tokens: &other.tokens });
                    }
                    let computed = lease.cached();
                    println!("job {} starts with {computed} of {} tokens cached", job.name, job.tokens.len());
                    self.running.push(Running { job, lease, computed });
                }
                (Err(ManagerError::Book(BookError::Lack(_))), _) if !self.running.is_empty() => {
                    self.waiting.push_front(job);
                    return Ok(());
                }
                (admitted, _) => return admitted.map(drop),
            }
        }
        Ok(())
    }

    /// One forward: chunks of prompts, and a token of each sequence that decodes.
    fn step(&mut self) -> Result<(), ManagerError> {
        let mut metadata = StepMetadata::default();
        let work = loop {
            let work = self.work();
            match self.manager.step(&work, &mut metadata) {
                Ok(()) => break work,
                Err(ManagerError::Book(BookError::Lack(lack))) => {
                    let Self { manager, reuse, .. } = self;
                    // What nobody uses makes way first, then the youngest job.
                    if !manager.with_book(|book| reuse.make_room(book, &lack))? {
                        self.preempt(lack)?;
                    }
                }
                Err(error) => return Err(error),
            }
        };
        // Here the kernels run over `metadata`: block tables, slots, and where each token is written.
        let Self { manager, reuse, running, .. } = self;
        for Running { job, lease, computed } in running {
            let Some(part) = work.iter().find(|part| part.sequence == lease.sequence()) else { continue };
            *computed += part.tokens as usize;
            let decoded = &job.tokens[lease.tokens().len().min(*computed)..*computed];
            manager.with_book(|book| reuse.computed(book, lease, decoded))?;
            if *computed == job.tokens.len() {
                job.tokens.push(job.name * 1000 + *computed as Token);
            }
        }
        while let Some(at) = self.running.iter().position(|running| running.job.tokens.len() > running.job.end) {
            let Running { job, lease, .. } = self.running.remove(at);
            let Self { manager, reuse, .. } = self;
            manager.with_book(|book| reuse.finish(book, lease))?;
            println!("job {} is done", job.name);
        }
        Ok(())
    }

    /// What each sequence computes next.
    fn work(&self) -> Vec<Work> {
        let mut left = self.budget;
        let mut work = Vec::with_capacity(self.running.len());
        for Running { job, lease, computed } in &self.running {
            let tokens = self.reuse.next_tokens(lease, left.min(job.tokens.len() - computed));
            left -= tokens;
            if tokens > 0 {
                work.push(Work { sequence: lease.sequence(), tokens: tokens as u32 });
            }
        }
        work
    }

    /// The youngest job gives up its caches. What it has computed stays cached as long as there is room.
    fn preempt(&mut self, lack: cacheplan::managers::Lack) -> Result<(), ManagerError> {
        if self.running.len() == 1 {
            return Err(BookError::from(lack).into());
        }
        if let Some(Running { job, lease, computed }) = self.running.pop() {
            println!("job {} makes way after {computed} tokens", job.name);
            let Self { manager, reuse, .. } = self;
            manager.with_book(|book| reuse.finish(book, lease))?;
            self.waiting.push_front(job);
        }
        Ok(())
    }
}
