//! A framework's own op gets planning by registering one descriptor.
//!
//! The op keeps a ring of the last 64 token embeddings of every sequence. Nothing in cacheplan knows it: the graph
//! names it, the descriptor reads its dimensions from the tensors, and the planner finds it a place beside the rest.
//!
//! Run it with `cargo run --example custom_op`.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use cacheplan::handlers::{DType, ResourceHandler};
use cacheplan::planner::{Budget, ModelCaches, PlanRequest};
use cacheplan::transforms::{
    GraphBuilder,
    layers::Attention,
    registry::{Cache, Descriptor},
};

const RING: &str = "acme.embedding_ring";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ring = Descriptor::new(RING, |op| {
        let length = op.dim("length", "ring", 2)?;
        let channels = op.dim("channels", "ring", 3)?;
        let handler = ResourceHandler::state(&[length, channels], DType::F16)?;
        Ok(vec![Cache { suffix: "embedding_ring".into(), handler }])
    });

    let mut builder = GraphBuilder::new("acme_decoder", 256, DType::Bf16);
    builder.layer();
    builder.attention(&Attention::grouped(8, 2, 32));
    builder.layer();
    builder.custom("ring", RING, &[("ring", &[64, 256])]);
    let model = ModelCaches::from(builder.build()).with(vec![ring], Vec::new());

    let budget = Budget::from_toml("max_batch_size = 4\nmax_seq_len = 1024", "budget")?;
    if let Some((_, collected)) = model.walk(&budget, None)? {
        for report in &collected.reports {
            println!("{:<26} matched {}", report.pass, report.matched.len());
        }
    }
    println!("\n{}", PlanRequest::of(model).with_budget(budget).plan()?.table());
    Ok(())
}
