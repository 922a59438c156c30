//! The two ops of recurrent layers as functions of standard operators, for runtimes that do not know them.
//!
//! They compute in f32 whatever their operands are, and give what these are.

use cacheplan_transforms::onnx::{FunctionProto, TensorProto};

use super::write::{Writer, int};

/// The input as f32.
fn wide(w: &mut Writer, x: &str) -> String {
    w.node_with("Cast", &[x], vec![int("to", TensorProto::FLOAT.into())])
}

/// x `[batch, tokens, channels]`, weight `[channels, 1, d_conv]`, bias, state `[batch, channels, d_conv]`, lengths
/// `[batch]`.
pub(crate) fn causal_conv1d(d_conv: usize) -> FunctionProto {
    let mut w = Writer::of_function();
    let [x, weight, bias, state] = ["x", "weight", "bias", "state"].map(|name| wide(&mut w, name));
    let x = w.transpose(&x, &[0, 2, 1]);
    let history = w.node_with("Concat", &[&state, &x], vec![int("axis", 2)]);
    let tokens = w.tokens_of("x");
    let two = w.ints(&[2]);
    let mut sum = w.unsqueeze(&bias, &[0, 2]);
    for tap in 0..d_conv as i64 {
        let start = w.ints(&[tap + 1]);
        let end = w.node("Add", &[&start, &tokens]);
        let part = w.node("Slice", &[&history, &start, &end, &two]);
        let (from, to) = (w.ints(&[tap]), w.ints(&[tap + 1]));
        let weight = w.node("Slice", &[&weight, &from, &to, &two]);
        // [channels, 1, 1] over [batch, channels, tokens].
        let weight = w.transpose(&weight, &[1, 0, 2]);
        let product = w.node("Mul", &[&part, &weight]);
        sum = w.node("Add", &[&sum, &product]);
    }
    let y = w.transpose(&sum, &[0, 2, 1]);
    let y = w.node("CastLike", &[&y, "x"]);
    // The last columns of each sequence, chosen by a product with ones where column and place are the same.
    let counted = w.counted("lengths", &tokens);
    let counted = w.unsqueeze(&counted, &[1, 2]);
    let columns = w.ints(&(0..d_conv as i64).collect::<Vec<_>>());
    let last = w.node("Add", &[&columns, &counted]);
    let width = w.node_with("Shape", &[&history], vec![int("start", 2), int("end", 3)]);
    let places = w.places(&width);
    let places = w.unsqueeze(&places, &[0, 2]);
    let chosen = w.node("Equal", &[&places, &last]);
    let chosen = wide(&mut w, &chosen);
    let state = w.node("MatMul", &[&history, &chosen]);
    let state = w.node("CastLike", &[&state, "state"]);
    w.into_function(
        "causal_conv1d",
        &["x", "weight", "bias", "state", "lengths"],
        &[(&y, "y"), (&state, "state_out")],
        &[],
    )
}

/// x `[batch, tokens, heads, head_dim]`, a, b and c `[batch, tokens, groups, d_state]`, d, dt `[batch, tokens, heads]`,
/// dt_bias, state `[batch, heads, head_dim, d_state]`, lengths `[batch]`: the sum over all earlier tokens, weighed by what
/// is left of them.
pub(crate) fn update_ssm_state(heads: usize, groups: usize, d_state: usize) -> FunctionProto {
    let mut w = Writer::of_function();
    let names = ["x", "a", "b", "c", "d", "dt", "dt_bias", "state"];
    let [x, a, b, c, d, dt, dt_bias, before] = names.map(|name| wide(&mut w, name));
    let all = w.tokens_of("x");
    let places = w.places(&all);
    let counted = w.counted("lengths", &all);
    let counted = w.unsqueeze(&counted, &[1]);
    let counts = w.node("Less", &[&places, &counted]);
    let counts = wide(&mut w, &counts);
    let counts = w.unsqueeze(&counts, &[2]);
    // A token that does not count takes no time.
    let dt = w.node("Add", &[&dt, &dt_bias]);
    let dt = w.node("Mul", &[&dt, &counts]);
    let decay = w.node("Mul", &[&dt, &a]);
    let second = w.whole(1);
    let decay = w.node("CumSum", &[&decay, &second]);
    let (decay, dt) = (w.transpose(&decay, &[0, 2, 1]), w.transpose(&dt, &[0, 2, 1]));
    let (ends, starts) = (w.unsqueeze(&decay, &[3]), w.unsqueeze(&decay, &[2]));
    let left = w.node("Sub", &[&ends, &starts]);
    let (columns, rows) = (w.unsqueeze(&places, &[0]), w.unsqueeze(&places, &[1]));
    let earlier = w.node("LessOrEqual", &[&columns, &rows]);
    let nothing = w.wide_number(0.0);
    let left = w.node("Where", &[&earlier, &left, &nothing]);
    let left = w.node("Exp", &[&left]);
    let left = w.node("Where", &[&earlier, &left, &nothing]);
    let mut each = |x: &str| {
        let apart = w.unsqueeze(x, &[3]);
        let shape = w.ints(&[1, 1, 1, (heads / groups) as i64, 1]);
        let expanded = w.node("Expand", &[&apart, &shape]);
        let all = w.reshape(&expanded, &[0, 0, heads as i64, d_state as i64]);
        w.transpose(&all, &[0, 2, 1, 3])
    };
    let (b, c) = (each(&b), each(&c));
    let b_columns = w.transpose(&b, &[0, 1, 3, 2]);
    let weights = w.node("MatMul", &[&c, &b_columns]);
    let weights = w.node("Mul", &[&weights, &left]);
    let steps = w.unsqueeze(&dt, &[2]);
    let weights = w.node("Mul", &[&weights, &steps]);
    let by_head = w.transpose(&x, &[0, 2, 1, 3]);
    let new = w.node("MatMul", &[&weights, &by_head]);
    let state = w.transpose(&before, &[0, 1, 3, 2]);
    let old = w.node("MatMul", &[&c, &state]);
    let fading = w.node("Exp", &[&decay]);
    let fading = w.unsqueeze(&fading, &[3]);
    let old = w.node("Mul", &[&old, &fading]);
    let y = w.node("Add", &[&new, &old]);
    let y = w.transpose(&y, &[0, 2, 1, 3]);
    let d = w.unsqueeze(&d, &[1]);
    let direct = w.node("Mul", &[&x, &d]);
    let y = w.node("Add", &[&y, &direct]);
    let y = w.node("CastLike", &[&y, "x"]);
    let (from, to, axis) = (w.ints(&[-1]), w.ints(&[i64::MAX]), w.ints(&[2]));
    let whole = w.node("Slice", &[&decay, &from, &to, &axis]);
    let rest = w.node("Sub", &[&whole, &decay]);
    let rest = w.node("Exp", &[&rest]);
    let rest = w.node("Mul", &[&rest, &dt]);
    let rest = w.unsqueeze(&rest, &[3]);
    let inputs = w.node("Mul", &[&by_head, &rest]);
    let inputs = w.transpose(&inputs, &[0, 1, 3, 2]);
    let added = w.node("MatMul", &[&inputs, &b]);
    let whole = w.node("Exp", &[&whole]);
    let whole = w.unsqueeze(&whole, &[3]);
    let kept = w.node("Mul", &[&before, &whole]);
    let state = w.node("Add", &[&kept, &added]);
    let state = w.node("CastLike", &[&state, "state"]);
    let inputs = ["x", "a", "b", "c", "d", "dt", "dt_bias", "state", "lengths"];
    let attributes = ["nheads", "dim", "dstate", "ngroups", "dt_softplus", "chunk_size"];
    w.into_function("update_ssm_state", &inputs, &[(&y, "y"), (&state, "state_out")], &attributes)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cacheplan_graphs::{GraphEngine, Input, Runner, Slice};
    use cacheplan_transforms::onnx::{EDGE_LLM, GraphProto, ModelProto, NodeProto, OperatorSetId};
    use prost::Message;
    use rstest::rstest;

    use super::super::write::port;
    use super::*;

    const BATCH: usize = 2;

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
                    "dt" => values.iter().map(|dt| dt.abs()).collect(),
                    _ => values,
                }
            })
            .collect();
        let sized = |shape: &[usize]| shape.iter().map(|&size| Some(size)).collect::<Vec<_>>();
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
                graph.input.push(port(name, TensorProto::FLOAT, &sized(shape)));
                inputs.push(Input { data: Slice::Float(values), shape: shape.clone() });
            }
        }
        graph.input.push(port("lengths", TensorProto::INT32, &[Some(BATCH)]));
        inputs.push(Input { data: Slice::Int(lengths), shape: vec![BATCH] });
        let shape_of = |name: &str| &operands.iter().find(|(own, ..)| *own == name).unwrap().1;
        graph.output = vec![
            port("y", TensorProto::FLOAT, &sized(shape_of("x"))),
            port("state_out", TensorProto::FLOAT, &sized(shape_of("state"))),
        ];
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
        let outputs = runner.run(&inputs).unwrap();
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
        let (heads, head_dim, groups, d_state) = (4, 3, 2, 5);
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
        let cases = [
            (causal_conv1d(d_conv), &conv[..], tokens * channels),
            (update_ssm_state(heads, groups, d_state), &scan[..], tokens * heads * head_dim),
        ];
        for (function, operands, per_sequence) in cases {
            let [op, parts] = [false, true].map(|in_parts| made(&function, in_parts, operands, lengths));
            for (sequence, &stated) in lengths.iter().enumerate() {
                let counted = if tokens == 1 { 1 } else { (stated as usize).min(tokens) };
                let rows = sequence * per_sequence..sequence * per_sequence + counted * (per_sequence / tokens);
                for (a, b) in op[0][rows.clone()].iter().zip(&parts[0][rows]) {
                    assert!((a - b).abs() < 1e-5, "{}: {a} is not {b}", function.name);
                }
            }
            for (a, b) in op[1].iter().zip(&parts[1]) {
                assert!((a - b).abs() < 1e-5, "{}, state: {a} is not {b}", function.name);
            }
        }
    }
}
