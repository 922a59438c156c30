//! Tests of the planner's public face; one binary, so that it links once.

mod autodeploy;
mod check;
mod common;
mod compare;
mod export;
mod groundtruth;
mod ledger;
mod plan;
mod random;
mod ranks;
mod speculation;
mod zoo;
