//! Exported graphs as `run` loads them, with the weights in them or beside them.
//!
//! A graph is held with its weights, as they are stored and as they are computed with, until it is known whether it can
//! run. So these files are not longer than what that leaves of the memory a refused one may take.

use std::fs;
use std::path::Path;

use cacheplan::files::Limit;
use cacheplan::graphs::{GraphEngine, Runner};

use crate::limits::survive;
use crate::{a_file, fixture, nothing};

const SHORT: Limit = Limit { bytes: 3 << 20, ..Limit::ONNX_WITH_WEIGHTS };

fn load(path: &Path) -> Option<Runner> {
    Runner::open(path, &GraphEngine::Interpreter).ok()
}

fn bytes(path: &str) -> Vec<u8> {
    fs::read(fixture(path)).unwrap()
}

#[test]
fn graphs_with_their_weights() {
    let seeds = ["static_cache/decode.onnx", "onnx/hybrid_opset18.onnx", "onnx/hybrid_opset23.onnx"].map(bytes);
    survive("graphs with their weights", SHORT, &seeds, a_file("g.onnx", load), nothing);
}

/// Small graphs, of which a mutation meets the nodes rather than the weights.
#[test]
fn graphs_that_compute_when_they_are_loaded() {
    let seeds = ["onnx/external/constants.onnx"].map(bytes);
    survive("graphs of constants", SHORT, &seeds, a_file("g.onnx", load), nothing);
}

/// The graph is mutated, then what its weights are read from.
#[test]
fn graphs_with_weights_beside_them() {
    let folder = tempfile::tempdir().unwrap();
    let (graph, weights) = (folder.path().join("external.onnx"), folder.path().join("external.weights"));
    let [seed, stored] = ["onnx/external/external.onnx", "onnx/external/external.weights"].map(bytes);
    let read = |graph_bytes: &[u8], weights_bytes: &[u8]| {
        fs::write(&graph, graph_bytes).unwrap();
        fs::write(&weights, weights_bytes).unwrap();
        load(&graph)
    };
    let seeds = std::slice::from_ref;
    survive("graphs with weights beside them", SHORT, seeds(&seed), |bytes| read(bytes, &stored), nothing);
    survive("weights beside a graph", SHORT, seeds(&stored), |bytes| read(&seed, bytes), nothing);
}
