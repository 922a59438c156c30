//! A framework's own op gets planning, memory and reuse: by one descriptor, or by a description of the architecture.
//!
//! The op keeps the last 64 embeddings of every sequence, all of which every token moves by one; one that wrote each into a row
//! of its own would take a `ring`. Nothing in cacheplan knows it: the graph names it, the descriptor
//! reads its dimensions from the tensors, and the planner finds it a place beside the rest. Whoever has a config and no graph
//! says the same in TOML, which `cacheplan plan config.json --description acme.toml` takes too.
//!
//! Run it with `cargo run --example custom_op`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use cacheplan::candle::Device;
use cacheplan::handlers::{DType, ResourceHandler};
use cacheplan::managers::book::{StepMetadata, Work};
use cacheplan::managers::device::CacheSet;
use cacheplan::managers::prefix::{Key, Namespace, Strategy, TenantId, Token};
use cacheplan::planner::{Budget, ModelCaches, PlanRequest};
use cacheplan::transforms::layers::Attention;
use cacheplan::transforms::registry::{Cache, Descriptor};
use cacheplan::transforms::{GraphBuilder, Model, ReadOptions};

const LAST: &str = "acme.last_embeddings";

const CONFIG: &str = r#"{
  "model_type": "acme_decoder", "torch_dtype": "bfloat16", "hidden_size": 256, "vocab_size": 1000,
  "mixer_types": ["look", "last"], "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2,
  "kept": 64, "max_position_embeddings": 4096
}"#;

const DESCRIPTION: &str = r#"
model_types = ["acme_decoder"]
weights = false

[[pattern]]
key = "mixer_types"

[kinds]
look = ["attention"]
last = ["last_embeddings"]

[blocks.last_embeddings]
block = "state"
rows = "kept"
width = "hidden_size"
dtype = "f16"
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let budget = Budget::from_toml(
        "max_batch_size = 2\nmax_seq_len = 256\ntokens_per_block = 16\n[workload]\ncheckpoints_per_sequence = 2",
        "budget",
    )?;
    let plan = PlanRequest::of(graph()).with_budget(budget.clone()).plan()?;
    println!("{}", plan.table());

    // The same of a config and its description.
    let options = ReadOptions { descriptions: vec![DESCRIPTION.to_owned()], ..ReadOptions::default() };
    let described = Model::read_config("config.json", CONFIG, &options)?;
    let described = PlanRequest::of(described).with_budget(budget).plan()?;
    assert_eq!(described.totals, plan.totals);

    // Memory for exactly that, and what a prompt leaves for the next one.
    let mut caches = CacheSet::allocate(&plan, &Device::Cpu)?;
    let mut reuse = caches.prefix_reuse(Strategy::complete(None))?;
    let namespace = Namespace::default();
    let mut step = StepMetadata::default();
    for question in [7, 8] {
        let prompt: Vec<Token> = (0..64).chain([question; 16]).collect();
        let manager = caches.manager_mut()?;
        let key = Key { namespace: &namespace, tokens: &prompt };
        let mut lease = manager.admit_reusing(&mut reuse, key, TenantId(0))?;
        let mut computed = lease.cached();
        println!("prompt {question}: {computed} of {} tokens are cached", prompt.len());
        // Another question may follow the same 64 tokens: a state is kept there.
        let other: Vec<Token> = (0..64).chain([0; 16]).collect();
        reuse.expect(&mut lease, Key { namespace: &namespace, tokens: &other });
        while computed < prompt.len() {
            let tokens = reuse.next_tokens(&lease, prompt.len() - computed);
            manager.step(&[Work { sequence: lease.sequence(), tokens: tokens as u32 }], &mut step)?;
            // Here the op's kernel runs over its slot.
            computed += tokens;
            manager.with_book(|book| reuse.computed(book, &mut lease, &[]))?;
        }
        manager.with_book(|book| reuse.finish(book, lease))?;
    }
    Ok(())
}

/// A layer of attention, and one of the op.
fn graph() -> ModelCaches {
    let last = Descriptor::new(LAST, |op| {
        let shape = [op.dim("rows", "last", 2)?, op.dim("width", "last", 3)?];
        let handler = ResourceHandler::state(&shape, DType::F16)?;
        Ok(vec![Cache { suffix: "last_embeddings".into(), handler }])
    });
    let mut builder = GraphBuilder::new("acme_decoder", 256, DType::Bf16);
    builder.layer();
    builder.attention(&Attention::grouped(8, 2, 32));
    builder.layer();
    builder.custom("last", LAST, &[("last", &[64, 256])]);
    ModelCaches::from(builder.build()).with(vec![last], Vec::new())
}
