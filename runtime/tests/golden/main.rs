//! Decoders over managed pools against what Hugging Face computed: logits, caches, chunks, batches, greedy tokens.

mod caches;
mod greedy;
mod harness;
mod prefixes;
mod steps;
mod variants;
