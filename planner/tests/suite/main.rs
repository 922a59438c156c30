//! Tests of the planner's public face; one binary, so that it links once.

mod autodeploy;
mod check;
mod common;
mod compare;
mod config;
mod diff;
mod draft;
mod explain;
mod export;
mod groundtruth;
mod ledger;
mod plan;
mod plan_file;
mod random;
mod ranks;
mod render;
mod schema;
mod speculation;
mod tiers;
mod zoo;
