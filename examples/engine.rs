//! An engine's loop with everything in it: planned pools, prefix reuse, chunked prefill, speculation and preemption.
//!
//! Run it with `cargo run --example engine`, or copy it: it reads no file, and where the forward would be, tokens are made up.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::VecDeque;

use cacheplan::candle::Device;
use cacheplan::managers::book::{Accepted, SequenceId, StepMetadata, Work};
use cacheplan::managers::device::{CacheManager, CacheSet};
use cacheplan::managers::prefix::{Key, Namespace, PrefixReuse, ReuseLease, Strategy, TenantId, Token};
use cacheplan::managers::{BookError, ManagerError};
use cacheplan::planner::{Budget, PlanRequest};
use cacheplan::transforms::{Model, ReadOptions};

/// A hybrid of attention and Mamba-2 in five layers, as its `config.json` would say it.
const SMALL_HYBRID: &str = r#"{
  "model_type": "nemotron_h", "dtype": "float32", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128,
  "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
  "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4
}"#;

/// Planned for short answers, so that some must make way; slots for states that outlive their sequences.
const BUDGET: &str = "
max_seq_len = 512
max_batch_size = 4
max_num_tokens = 128
tokens_per_block = 16
[memory]
bytes = '700KiB'
[speculation]
draft_tokens = 2
scheme = 'snapshots'
[workload]
checkpoints_per_sequence = 2
prompt = { fixed = 140 }
output = { fixed = 20 }
";

/// Tokens that are guessed behind the known one, as many as the plan has places for.
const GUESSES: usize = 2;

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
    /// Guesses that were verified, and those of them that were right.
    guessed: (u32, u32),
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let budget = Budget::from_toml(BUDGET, "budget.toml")?;
    let model = Model::read_config("config.json", SMALL_HYBRID, &ReadOptions::default())?;
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
        guessed: (0, 0),
    };
    while !engine.is_done() {
        engine.admit()?;
        engine.step()?;
    }
    println!("\n{} of {} guesses were right", engine.guessed.1, engine.guessed.0);
    println!("token hit rate {:.2}\n{}", engine.reuse.metrics().hit_rate(), engine.manager.book().stats());
    Ok(())
}

impl Engine<'_> {
    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Takes in jobs while there is room.
    fn admit(&mut self) -> Result<(), ManagerError> {
        let namespace = &self.namespace;
        while self.running.len() < self.batch
            && let Some(job) = self.waiting.front()
        {
            let prompt = Key { namespace, tokens: &job.tokens };
            // What a running one is about to compute of it is not computed a second time.
            if self.running.iter().any(|running| self.reuse.coming(&running.lease, prompt) > 0) {
                return Ok(());
            }
            let mut lease = match self.manager.admit_reusing(&mut self.reuse, prompt, TenantId(0)) {
                Err(ManagerError::Book(BookError::Lack(_))) if !self.running.is_empty() => return Ok(()),
                admitted => admitted?,
            };
            let Some(job) = self.waiting.pop_front() else { return Ok(()) };
            // Where those that wait turn off from this prompt, a state is kept for them.
            for other in &self.waiting {
                self.reuse.expect(&mut lease, Key { namespace, tokens: &other.tokens });
            }
            let computed = lease.cached();
            println!("job {} starts with {computed} of {} tokens cached", job.name, job.tokens.len());
            self.running.push(Running { job, lease, computed });
        }
        Ok(())
    }

    /// One forward: chunks of prompts, and a token of each sequence that decodes.
    fn step(&mut self) -> Result<(), ManagerError> {
        let mut metadata = StepMetadata::default();
        let verifies = self.running.iter().all(|Running { job, computed, .. }| computed + 1 == job.tokens.len());
        let work = loop {
            let work = self.work(verifies);
            let taken = match verifies {
                true => self.manager.speculate(&work, &mut metadata),
                false => self.manager.step(&work, &mut metadata),
            };
            match taken {
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
        let Self { manager, reuse, running, guessed, .. } = self;
        let right: Vec<u32> = work.iter().map(|part| if verifies { right(part) } else { part.tokens }).collect();
        if verifies {
            // Keys behind a wrong guess are overwritten, and the state behind the last right one becomes the sequence's.
            let accepted: Vec<(SequenceId, Accepted<'_>)> =
                work.iter().zip(&right).map(|(part, right)| (part.sequence, Accepted::First(*right))).collect();
            manager.commit(&accepted)?;
            guessed.0 += work.iter().map(|part| part.tokens - 1).sum::<u32>();
            guessed.1 += right.iter().map(|right| right - 1).sum::<u32>();
        }
        for Running { job, lease, computed } in running {
            let Some(at) = work.iter().position(|part| part.sequence == lease.sequence()) else { continue };
            let known = job.tokens.len();
            *computed += right[at] as usize;
            job.tokens.extend((known..*computed).map(|place| made_up(job.name, place)));
            let decoded = &job.tokens[lease.tokens().len().min(*computed)..*computed];
            manager.with_book(|book| reuse.computed(book, lease, decoded))?;
            if *computed == job.tokens.len() {
                job.tokens.push(made_up(job.name, *computed));
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

    /// What each sequence computes next: what is known of it, and guesses where all that is known of all is one token.
    fn work(&self, verifies: bool) -> Vec<Work> {
        let mut left = self.budget;
        let mut work = Vec::with_capacity(self.running.len());
        for Running { job, lease, computed } in &self.running {
            let guesses = if verifies { GUESSES } else { 0 };
            let tokens = self.reuse.next_tokens(lease, left.min(job.tokens.len() - computed + guesses));
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

/// The token that a model would draw.
fn made_up(name: u32, place: usize) -> Token {
    name * 1000 + place as Token
}

/// How many of a part's tokens count: the known one, and guesses up to the first that the model would not draw. Made up: one
/// is right.
fn right(part: &Work) -> u32 {
    part.tokens.min(2)
}
