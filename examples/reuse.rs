//! Prefix reuse in an engine's own loop: the book shares blocks and copies states, the engine only computes what is left.
//!
//! Run it with `cargo run --example reuse`. No model runs here: where the forward would be, a line is printed.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use cacheplan::managers::BookError;
use cacheplan::managers::book::{CacheBook, StepMetadata, Work};
use cacheplan::managers::prefix::{Key, Namespace, PrefixReuse, Strategy, TenantId, Token};
use cacheplan::planner::{Budget, PlanRequest};
use cacheplan::transforms::{Model, ReadOptions};

const SMALL_HYBRID: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/nemotron_h/config.json");

/// Slots for states that outlive their sequences are planned like everything else.
const BUDGET: &str = "
max_seq_len = 512
max_batch_size = 4
max_num_tokens = 128
tokens_per_block = 16
[workload]
checkpoints_per_sequence = 4
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let budget = Budget::from_toml(BUDGET, "budget.toml")?;
    let mut model = Model::read(SMALL_HYBRID.as_ref(), &ReadOptions::default())?;
    let collected = model.graph.collect(&budget.pass_context(&model.info))?;
    let plan = PlanRequest::of((model.info.clone(), collected.resources.clone())).with_budget(budget.clone()).plan()?;

    let mut book = CacheBook::new(&plan)?;
    let mut reuse = PrefixReuse::new(&plan, &mut book, Strategy::complete(Some(256)))?;

    // Three users of one system prompt of 200 tokens, then the first of them again.
    let system: Vec<Token> = (0..200).collect();
    let ask = |question: Token| -> Vec<Token> { system.iter().copied().chain([1000 + question; 30]).collect() };
    for question in [1, 2, 3, 1] {
        println!("\nquestion {question}");
        serve(&mut book, &mut reuse, &ask(question))?;
    }
    println!("\ntoken hit rate {:.2}", reuse.metrics().hit_rate());
    Ok(())
}

fn serve(book: &mut CacheBook, reuse: &mut PrefixReuse, prompt: &[Token]) -> Result<(), BookError> {
    const TOKENS_PER_STEP: usize = 128;
    let namespace = Namespace::default();
    let mut lease = reuse.admit(book, Key { namespace: &namespace, tokens: prompt }, TenantId(0))?;
    println!("  {} of {} tokens are cached", lease.cached(), prompt.len());
    let mut computed = lease.cached();
    let mut metadata = StepMetadata::default();
    while computed < prompt.len() {
        let tokens = reuse.next_tokens(&lease, TOKENS_PER_STEP.min(prompt.len() - computed));
        let work = [Work { sequence: lease.sequence(), tokens: tokens as u32 }];
        while let Err(error) = book.step(&work, &mut metadata) {
            let BookError::Lack(lack) = &error else { return Err(error) };
            if !reuse.make_room(book, lack)? {
                // Here an engine preempts another sequence.
                return Err(error);
            }
        }
        // An engine with pools executes these copies before its kernels run.
        let copies = book.take_ops();
        println!("  forward of tokens {computed}..{}, after {} copies", computed + tokens, copies.len());
        computed += tokens;
        // A step that decodes says here which tokens of its own it computed.
        reuse.computed(book, &mut lease, &[])?;
    }
    reuse.finish(book, lease)
}
