//! Tests of the whole planner: part of the crate, so that what nobody outside needs stays private.

mod autodeploy;
mod check;
mod common;
mod compare;
mod config;
mod diff;
mod draft;
mod explain;
mod export;
mod fit;
mod formulas;
mod groundtruth;
mod ledger;
mod logs;
mod oracle_exports;
mod oracle_llama_cpp;
mod oracles;
mod plan;
mod plan_file;
mod random;
mod ranks;
mod render;
mod schema;
mod speculation;
mod tiers;
mod zoo;
