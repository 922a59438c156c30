//! One file per subcommand, and what they share.

pub(crate) mod bench;
pub(crate) mod budget;
pub(crate) mod calibrate;
pub(crate) mod check;
pub(crate) mod check_log;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod disaggregate;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod export_graph;
pub(crate) mod fit;
pub(crate) mod hub;
pub(crate) mod inspect;
pub(crate) mod load;
pub(crate) mod man;
pub(crate) mod plan;
pub(crate) mod profile;
pub(crate) mod run;
mod runner;
pub(crate) mod simulate;
pub(crate) mod start;
pub(crate) mod stats;
pub(crate) mod tiers;
pub(crate) mod verify;
pub(crate) mod web;

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::{Failure, print_json};
use crate::paint::print_table;

/// How a command prints that shows one thing to people and to programs.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    Table,
    /// The same as JSON
    Json,
}

impl Format {
    /// Prints data, of which `table` is what people see.
    pub(crate) fn print(self, table: &str, data: &impl Serialize) -> Result<(), Failure> {
        match self {
            Self::Table => print_table(table),
            Self::Json => print_json(data),
        }
    }
}
