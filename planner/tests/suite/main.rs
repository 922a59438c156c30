//! Tests of the planner's public face; one binary, so that it links once.

mod common;
mod plan;
