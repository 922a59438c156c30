//! Exported graphs as `run` loads them, with the weights in them or beside them.
//!
//! A graph is held with its weights, as they are stored and as they are computed with, until it is known whether it can
//! run. So these files are not longer than what that leaves of the memory a refused one may take.

use std::fs;
use std::path::Path;

use cacheplan::files::Limit;
use cacheplan::graphs::{GraphEngine, Runner};
use cacheplan::transforms::onnx::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetId, TensorProto, TensorShape, TensorType, TypeProto,
    ValueInfo,
};
use prost::Message;

use crate::limits::{survive, survive_all};
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

/// A few bytes that say a lot, which no mutation comes upon.
#[test]
fn graphs_that_grow() {
    const MANY: i64 = 1 << 15;
    let add = |value: &str| node("Add", &["x", value], "y");
    let filled = |sizes: &[i64]| (vec![node("ConstantOfShape", &["n"], "v"), add("v")], vec![ints("n", sizes)]);
    let mut doubled = vec![node("Concat", &["n", "n"], "0")];
    doubled.extend((0..40).map(|n: i32| node("Concat", &[&n.to_string(), &n.to_string()], &(n + 1).to_string())));
    doubled.push(add("40"));
    doubled.iter_mut().for_each(|node| node.attribute = vec![int("axis", 0)]);
    let mut often: Vec<NodeProto> =
        (0..20_000).map(|n| node("Add", &["n", &n.to_string()], &(n + 1).to_string())).collect();
    often.push(add("20000"));
    often[0].input[1] = "n".to_owned();
    let graphs: Vec<(Vec<NodeProto>, Vec<TensorProto>)> = vec![
        filled(&[MANY, MANY]),
        filled(&[1 << 40, 1 << 40]),
        filled(&[0, 1 << 40, 1 << 40]),
        filled(&[1; 1 << 16]),
        (
            vec![node("ConstantOfShape", &["n"], "v"), node("Exp", &["v"], "w"), add("w")],
            vec![ints("n", &[MANY, MANY])],
        ),
        (
            vec![node("ConstantOfShape", &["n"], "v"), node("MatMul", &["v", "v"], "w"), add("w")],
            vec![ints("n", &[4096, 4096])],
        ),
        (
            vec![node("Range", &["a", "b", "c"], "v"), add("v")],
            vec![ints("a", &[0]), ints("b", &[1 << 28]), ints("c", &[1])],
        ),
        (
            vec![node("Slice", &["n", "a", "b", "a", "c"], "v"), add("v")],
            vec![ints("n", &[1, 2, 3]), ints("a", &[0]), ints("b", &[i64::MAX]), ints("c", &[i64::MAX])],
        ),
        (vec![node("Unsqueeze", &["n", "a"], "v"), add("v")], vec![ints("n", &[1]), ints("a", &[0; 100_000])]),
        (vec![node("Reshape", &["x", "n"], "y")], vec![ints("n", &[1 << 40, -1])]),
        (vec![add("n")], vec![TensorProto { dims: vec![1; 100_000], ..ints("n", &[1]) }]),
        (vec![add("n")], vec![TensorProto { dims: vec![0, i64::MAX, i64::MAX], ..ints("n", &[]) }]),
        (doubled, vec![ints("n", &[1; 64])]),
        (often, vec![ints("n", &[1; 1000])]),
    ];
    let files: Vec<Vec<u8>> = graphs.into_iter().map(|(nodes, weights)| model(nodes, weights)).collect();
    let next = std::cell::Cell::new(0);
    let each = |_: &mut _| {
        next.set(next.get() + 1);
        files[next.get() % files.len()].clone()
    };
    survive_all("graphs that grow", each, a_file("g.onnx", load), nothing);
}

fn node(op: &str, inputs: &[&str], output: &str) -> NodeProto {
    let input = inputs.iter().map(|&input| input.to_owned()).collect();
    NodeProto { input, output: vec![output.to_owned()], op_type: op.to_owned(), ..NodeProto::default() }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i, r#type: 2, ..AttributeProto::default() }
}

fn ints(name: &str, numbers: &[i64]) -> TensorProto {
    TensorProto {
        name: name.to_owned(),
        dims: vec![numbers.len() as i64],
        data_type: TensorProto::INT64,
        raw_data: numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        ..TensorProto::default()
    }
}

/// From `x` to `y`, which are whole numbers.
fn model(node: Vec<NodeProto>, initializer: Vec<TensorProto>) -> Vec<u8> {
    let port = |name: &str| {
        let tensor_type = TensorType { elem_type: TensorProto::INT64, shape: Some(TensorShape::default()) };
        ValueInfo { name: name.to_owned(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
    };
    let (input, output) = (vec![port("x")], vec![port("y")]);
    let graph = Some(GraphProto { node, initializer, input, output, ..GraphProto::default() });
    let opset_import = vec![OperatorSetId { domain: String::new(), version: 18 }];
    ModelProto { graph, opset_import, ..ModelProto::default() }.encode_to_vec()
}
