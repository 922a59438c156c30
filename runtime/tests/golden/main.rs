//! Decoders over managed pools against what Hugging Face computed: logits, caches, chunks, batches, greedy tokens.

#[macro_use]
mod models;

mod caches;
mod disk;
mod gguf;
mod greedy;
mod harness;
mod narrow;
mod offload;
mod prediction;
mod prefixes;
mod preprocess;
mod sampled;
mod speculative;
mod steps;
mod variants;
