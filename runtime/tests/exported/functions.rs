//! What stands in an exported file for the two recurrent ops, where a runtime does not know them.

use std::path::Path;

use cacheplan_graphs::{GraphEngine, Input, Runner, Slice};
use cacheplan_transforms::onnx::{
    AttributeProto, Dimension, EDGE_LLM, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetId, TensorProto,
    TensorShape, TensorType, TypeProto, ValueInfo,
};
use prost::Message;
use rstest::rstest;

use crate::exporter::export;
use crate::fixture;

const BATCH: usize = 2;

/// The functions of the hybrid's file.
fn functions() -> Vec<FunctionProto> {
    let folder = tempfile::tempdir().unwrap();
    let files = export(&fixture("static_cache/nemotron_h"), &[None], 16, folder.path()).unwrap();
    ModelProto::decode(std::fs::read(&files[0]).unwrap().as_slice()).unwrap().functions
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i, r#type: 2, ..AttributeProto::default() }
}

fn port(name: &str, elem_type: i32, shape: &[usize]) -> ValueInfo {
    let dim = |&size: &usize| Dimension { dim_value: Some(size as i64), dim_param: None };
    let shape = Some(TensorShape { dim: shape.iter().map(dim).collect() });
    let tensor_type = Some(TensorType { elem_type, shape });
    ValueInfo { name: name.to_owned(), r#type: Some(TypeProto { tensor_type }) }
}

/// Numbers that look drawn.
fn drawn(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|n| (((n + 1) * (seed + 3) * 7919 % 1009) as f32 / 1009.0) - 0.5).collect()
}

/// An operand's name and shape, and whether it is a parameter.
type Operand = (&'static str, Vec<usize>, bool);

/// What the op makes of such operands and of `lengths`, run by itself or by what the function says.
fn made(function: &FunctionProto, in_parts: bool, operands: &[Operand], lengths: &[i64]) -> Vec<Vec<f32>> {
    let values: Vec<Vec<f32>> = operands
        .iter()
        .enumerate()
        .map(|(seed, (name, shape, _))| {
            let values = drawn(shape.iter().product(), seed);
            match *name {
                "a" => values.iter().map(|a| -a.abs() - 0.1).collect(),
                // No time runs backwards.
                "dt" | "dt_bias" => values.iter().map(|dt| dt.abs()).collect(),
                _ => values,
            }
        })
        .collect();
    let mut graph = GraphProto::default();
    let mut inputs = Vec::new();
    for ((name, shape, is_parameter), values) in operands.iter().zip(&values) {
        if *is_parameter {
            graph.initializer.push(TensorProto {
                name: (*name).to_owned(),
                dims: shape.iter().map(|&size| size as i64).collect(),
                data_type: TensorProto::FLOAT,
                raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into(),
                ..TensorProto::default()
            });
        } else {
            graph.input.push(port(name, TensorProto::FLOAT, shape));
            inputs.push(Input::new(Slice::Float(values), shape.clone()));
        }
    }
    graph.input.push(port("lengths", TensorProto::INT32, &[BATCH]));
    inputs.push(Input::new(Slice::Int(lengths), vec![BATCH]));
    let shape_of = |name: &str| &operands.iter().find(|(own, ..)| *own == name).unwrap().1;
    graph.output =
        vec![port("y", TensorProto::FLOAT, shape_of("x")), port("state_out", TensorProto::FLOAT, shape_of("state"))];
    let stated = |name: &str| match name {
        "nheads" => shape_of("x")[2] as i64,
        "dim" => shape_of("x")[3] as i64,
        "ngroups" => shape_of("b")[2] as i64,
        "dstate" => shape_of("b")[3] as i64,
        _ => 0,
    };
    graph.node = if in_parts {
        function.node.clone()
    } else {
        vec![NodeProto {
            input: function.input.clone(),
            output: function.output.clone(),
            op_type: function.name.clone(),
            domain: EDGE_LLM.to_owned(),
            attribute: function.attribute.iter().map(|name| int(name, stated(name))).collect(),
            ..NodeProto::default()
        }]
    };
    let opset = |domain: &str, version| OperatorSetId { domain: domain.to_owned(), version };
    let opset_import = vec![opset("", 18), opset(EDGE_LLM, 1)];
    let model = ModelProto { graph: Some(graph), opset_import, ..ModelProto::default() };
    let folder = tempfile::tempdir().unwrap();
    let file: &Path = &folder.path().join("op.onnx");
    std::fs::write(file, model.encode_to_vec()).unwrap();
    let mut runner = Runner::open(file, &GraphEngine::Interpreter).unwrap();
    let outputs = runner.run(&mut inputs).unwrap();
    (0..2).map(|at| outputs.get(at).unwrap().floats().unwrap()).collect()
}

/// At one token whatever lengths a runtime states, the whole context's too; else as many as are stated.
#[rstest]
#[case::of_this_call(1, &[1, 1])]
#[case::of_the_context(1, &[14, 3])]
#[case::not_stated(1, &[0, 0])]
#[case::whole(5, &[5, 5])]
#[case::padded(5, &[3, 4])]
#[case::nothing_counts(5, &[0, 5])]
#[case::too_many(5, &[9, 2])]
fn a_function_makes_what_the_op_does(#[case] tokens: usize, #[case] lengths: &[i64]) {
    let (channels, d_conv) = (6, 4);
    let conv: [Operand; 4] = [
        ("x", vec![BATCH, tokens, channels], false),
        ("weight", vec![channels, 1, d_conv], true),
        ("bias", vec![channels], true),
        ("state", vec![BATCH, channels, d_conv], false),
    ];
    // As the model has them.
    let (heads, head_dim, groups, d_state) = (4, 16, 2, 8);
    let scan: [Operand; 8] = [
        ("x", vec![BATCH, tokens, heads, head_dim], false),
        ("a", vec![heads], true),
        ("b", vec![BATCH, tokens, groups, d_state], false),
        ("c", vec![BATCH, tokens, groups, d_state], false),
        ("d", vec![heads], true),
        ("dt", vec![BATCH, tokens, heads], false),
        ("dt_bias", vec![heads], true),
        ("state", vec![BATCH, heads, head_dim, d_state], false),
    ];
    let functions = functions();
    let cases =
        [("causal_conv1d", &conv[..], tokens * channels), ("update_ssm_state", &scan[..], tokens * heads * head_dim)];
    for (name, operands, per_sequence) in cases {
        let function = functions.iter().find(|function| function.name == name).unwrap();
        let [op, parts] = [false, true].map(|in_parts| made(function, in_parts, operands, lengths));
        for (sequence, &stated) in lengths.iter().enumerate() {
            let counted = if tokens == 1 { 1 } else { (stated as usize).min(tokens) };
            let rows = sequence * per_sequence..sequence * per_sequence + counted * (per_sequence / tokens);
            for (a, b) in op[0][rows.clone()].iter().zip(&parts[0][rows]) {
                assert!((a - b).abs() < 1e-5, "{name}: {a} is not {b}");
            }
        }
        for (a, b) in op[1].iter().zip(&parts[1]) {
            assert!((a - b).abs() < 1e-5, "{name}, state: {a} is not {b}");
        }
    }
}
