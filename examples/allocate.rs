//! From a model's config to allocated pools, block tables and slots: what an engine would do around its own kernels.
//!
//! Run it with `cargo run --example allocate [MODEL]`; without a model it takes a small hybrid.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use cacheplan::candle::Device;
use cacheplan::managers::CountingAllocator;
use cacheplan::managers::book::{StepMetadata, Work};
use cacheplan::managers::device::CacheSet;
use cacheplan::planner::{Budget, PlanRequest};
use cacheplan::transforms::{Model, ReadOptions};

/// Without it nobody counts what the CPU really allocates.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A hybrid of attention and Mamba-2 in five layers, as its `config.json` would say it.
const SMALL_HYBRID: &str = r#"{
  "model_type": "nemotron_h", "dtype": "float32", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128,
  "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "mlp"],
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
  "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4
}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 1. Plan: which pools there are, and how large.
    let budget = Budget::from_toml("max_seq_len = 128\nmax_batch_size = 4", "budget.toml")?;
    let model = match std::env::args().nth(1) {
        Some(path) => Model::read(path.as_ref(), &ReadOptions::default())?,
        None => Model::read_config("config.json", SMALL_HYBRID, &ReadOptions::default())?,
    };
    let plan = PlanRequest::of(model).with_budget(budget).plan()?;

    // 2. Allocate exactly that; `Device::new_cuda(0)` would put it on a GPU.
    let mut caches = CacheSet::allocate(&plan, &Device::Cpu)?;
    for pool in caches.bytes()? {
        println!("{:<15} {:>9} bytes planned, allocated {:?}", pool.id, pool.planned_bytes, pool.actual_bytes);
    }

    // 3. Admit two sequences and compute their prompts in one ragged step.
    let manager = caches.manager_mut()?;
    let (first, second) = (manager.admit(40)?, manager.admit(9)?);
    let mut step = StepMetadata::default();
    manager.step(&[Work { sequence: first, tokens: 40 }, Work { sequence: second, tokens: 9 }], &mut step)?;
    println!("\nprompts: cu_seqlens {:?}, slots {:?}", step.cu_seqlens, step.slots);
    for pool in &step.pools {
        let (first, second, row) = (pool.row(0), pool.row(1), pool.slot_mapping[0]);
        println!("{}: block tables {first:?} and {second:?}, the first token goes to row {row}", pool.id);
    }

    // 4. What the kernels of a layer get: a whole pool, and where the layer lies in it.
    for resource in &plan.resources {
        let route = manager.route_of(&resource.name)?;
        if let Ok(layer) = manager.kv_layer(route) {
            println!(
                "{:<13} pool {:?}, step.pools[{}], {:?}",
                resource.name,
                layer.pool.shape(),
                layer.paged,
                layer.view
            );
        } else if let Ok(layer) = manager.state_layer(route) {
            println!("{:<13} pool {:?}, step.slots, {:?}", resource.name, layer.pool.shape(), layer.view);
        }
    }

    // 5. What was planned beside what is used, by the pool that each resource names.
    let stats = manager.book().stats();
    for resource in &plan.resources {
        let Some(pool) = stats.planned_pool(&resource.pool) else { continue };
        println!(
            "{:<13} {} of {} units in {}, {} of them padding",
            resource.name, pool.used, pool.units, pool.id, pool.reserved
        );
    }

    // 6. Decode one token each, then give everything back.
    manager.step(&[Work { sequence: first, tokens: 1 }, Work { sequence: second, tokens: 1 }], &mut step)?;
    println!("\ndecode: positions {:?}, kv_lens {:?}", step.positions, step.kv_lens);
    manager.finish(first)?;
    manager.finish(second)?;
    println!("\n{}", manager.book().stats());
    Ok(())
}
