//! Operators that no fixture has.

use cacheplan_graphs::{GraphEngine, GraphError, Input, Runner, Slice};
use cacheplan_transforms::onnx::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetId, TensorProto, TensorShape, TensorType,
    TypeProto, ValueInfo,
};
use prost::Message;
use rstest::rstest;

fn port(name: &str, elem_type: i32, shape: &[usize]) -> ValueInfo {
    let dim = |&size: &usize| Dimension { dim_value: Some(size as i64), dim_param: None };
    let shape = Some(TensorShape { dim: shape.iter().map(dim).collect() });
    ValueInfo { name: name.to_owned(), r#type: Some(TypeProto { tensor_type: Some(TensorType { elem_type, shape }) }) }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.to_owned(), i, r#type: 2, ..AttributeProto::default() }
}

fn text(name: &str, s: &'static str) -> AttributeProto {
    AttributeProto { name: name.to_owned(), s: s.into(), r#type: 3, ..AttributeProto::default() }
}

type Floats<'a> = (&'a str, &'a [f32], Vec<usize>);

/// What one node makes of inputs and of whole numbers that it has as a constant, its last input.
fn run(
    op: &str,
    attribute: Vec<AttributeProto>,
    inputs: &[Floats<'_>],
    constant: Option<i64>,
    outputs: &[(&str, i32, Vec<usize>); 2],
) -> Result<Vec<Vec<f32>>, GraphError> {
    // An input without a name is left out.
    let there = || inputs.iter().filter(|(name, ..)| !name.is_empty());
    let mut graph = GraphProto {
        input: there().map(|(name, _, shape)| port(name, TensorProto::FLOAT, shape)).collect(),
        output: outputs.iter().map(|(name, kind, shape)| port(name, *kind, shape)).collect(),
        ..GraphProto::default()
    };
    let mut node = NodeProto {
        input: inputs.iter().map(|(name, ..)| (*name).to_owned()).collect(),
        output: outputs.iter().map(|(name, ..)| format!("own_{name}")).collect(),
        op_type: op.to_owned(),
        attribute,
        ..NodeProto::default()
    };
    if let Some(constant) = constant {
        node.input.push("constant".to_owned());
        graph.initializer.push(TensorProto {
            name: "constant".to_owned(),
            dims: vec![1],
            data_type: TensorProto::INT64,
            raw_data: constant.to_le_bytes().to_vec().into(),
            ..TensorProto::default()
        });
    }
    let casts = outputs.iter().map(|(name, ..)| NodeProto {
        input: vec![format!("own_{name}")],
        output: vec![(*name).to_owned()],
        op_type: "Cast".to_owned(),
        attribute: vec![int("to", TensorProto::FLOAT.into())],
        ..NodeProto::default()
    });
    graph.node = std::iter::once(node).chain(casts).collect();
    let opset = OperatorSetId { domain: String::new(), version: 27 };
    let model = ModelProto { graph: Some(graph), opset_import: vec![opset], ..ModelProto::default() };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("operator.onnx");
    std::fs::write(&file, model.encode_to_vec()).unwrap();
    let mut runner = Runner::open(&file, &GraphEngine::Interpreter)?;
    let mut given: Vec<Input<'_>> =
        there().map(|(_, data, shape)| Input::new(Slice::Float(data), shape.clone())).collect();
    let made = runner.run(&mut given)?;
    Ok((0..2).map(|at| made.get(at).unwrap().floats().unwrap()).collect())
}

#[rstest]
#[case::of_each_row(-1, 1, 2, &[5.0, 5.0, 3.0, 3.0], &[1.0, 3.0, 0.0, 2.0])]
#[case::the_smallest(1, 0, 2, &[1.0, 2.0, 1.0, 1.0], &[0.0, 2.0, 1.0, 3.0])]
#[case::along_the_first_axis(0, 1, 1, &[3.0, 5.0, 3.0, 5.0], &[1.0, 0.0, 1.0, 0.0])]
fn the_largest_come_first_and_of_equal_ones_the_earlier(
    #[case] axis: i64,
    #[case] largest: i64,
    #[case] count: i64,
    #[case] values: &[f32],
    #[case] places: &[f32],
) {
    let x = [1.0, 5.0, 2.0, 5.0, 3.0, 1.0, 3.0, 1.0];
    let shape = if axis == 0 { vec![1, 4] } else { vec![2, 2] };
    let outputs = [("values", TensorProto::FLOAT, shape.clone()), ("places", TensorProto::FLOAT, shape)];
    let attributes = vec![int("axis", axis), int("largest", largest)];
    let made = run("TopK", attributes, &[("x", &x[..], vec![2, 4])], Some(count), &outputs).unwrap();
    assert_eq!((made[0].as_slice(), made[1].as_slice()), (values, places));
}

#[test]
fn more_than_there_are_is_refused() {
    let outputs = ["values", "places"].map(|name| (name, TensorProto::FLOAT, vec![5]));
    let error = run("TopK", Vec::new(), &[("x", &[1.0; 4][..], vec![4])], Some(5), &outputs).unwrap_err();
    assert!(error.to_string().contains("5 of 4 are not there"), "{error}");
}

const BATCH: usize = 2;
const TOKENS: usize = 3;
const HEADS: usize = 2;
const KEY: usize = 3;
const VALUE: usize = 2;

fn drawn(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|n| ((n + 1) * (seed + 3) * 7919 % 1009) as f32 / 1009.0 - 0.5).collect()
}

/// ONNX's definition of each rule, token after token.
#[rstest]
#[case("linear", false)]
#[case("gated", false)]
#[case("gated", true)]
#[case("delta", false)]
#[case("gated_delta", false)]
#[case("gated_delta", true)]
fn linear_attention_follows_its_rule(#[case] rule: &'static str, #[case] per_channel: bool) {
    let (keys, values) = (HEADS * KEY, HEADS * VALUE);
    let decays = if per_channel { keys } else { HEADS };
    let shape = |width: usize| vec![BATCH, TOKENS, width];
    let of = |width: usize, seed| drawn(BATCH * TOKENS * width, seed);
    let (q, k, v) = (of(keys, 1), of(keys, 2), of(values, 3));
    let decay: Vec<f32> = of(decays, 4).iter().map(|x| -x.abs()).collect();
    let beta: Vec<f32> = of(HEADS, 5).iter().map(|x| x.abs()).collect();
    let mut state = drawn(BATCH * HEADS * KEY * VALUE, 6);
    let state_shape = vec![BATCH, HEADS, KEY, VALUE];
    let (gated, delta) = (rule.starts_with("gated"), rule.ends_with("delta"));
    let mut inputs = vec![("q", &*q, shape(keys)), ("k", &*k, shape(keys)), ("v", &*v, shape(values))];
    let before = state.clone();
    inputs.push(("state", &before[..], state_shape.clone()));
    if gated {
        inputs.push(("decay", &decay[..], shape(decays)));
    }
    let mut attributes =
        vec![int("q_num_heads", HEADS as i64), int("kv_num_heads", HEADS as i64), text("update_rule", rule)];
    attributes.push(AttributeProto { name: "scale".to_owned(), f: 0.5, r#type: 1, ..AttributeProto::default() });
    if delta && !gated {
        // The decay's place is left empty.
        inputs.push(("", &[][..], Vec::new()));
    }
    if delta {
        inputs.push(("beta", &beta[..], shape(HEADS)));
    }
    let outputs = [("y", TensorProto::FLOAT, shape(values)), ("after", TensorProto::FLOAT, state_shape)];
    let made = run("LinearAttention", attributes, &inputs, None, &outputs).unwrap();
    let mut expected = Vec::new();
    for (sequence, token) in (0..BATCH).flat_map(|sequence| (0..TOKENS).map(move |token| (sequence, token))) {
        let row = sequence * TOKENS + token;
        for head in 0..HEADS {
            let state = &mut state[(sequence * HEADS + head) * KEY * VALUE..][..KEY * VALUE];
            let key = &k[row * keys + head * KEY..][..KEY];
            for (channel, row_of) in state.chunks_exact_mut(VALUE).enumerate() {
                let at = if per_channel { row * keys + head * KEY + channel } else { row * HEADS + head };
                let left = if gated { decay[at].exp() } else { 1.0 };
                row_of.iter_mut().for_each(|x| *x *= left);
            }
            for j in 0..VALUE {
                let held: f32 = (0..KEY).map(|i| key[i] * state[i * VALUE + j]).sum();
                let value = v[row * values + head * VALUE + j];
                let new = if delta { beta[row * HEADS + head] * (value - held) } else { value };
                (0..KEY).for_each(|i| state[i * VALUE + j] += key[i] * new);
                let read: f32 = (0..KEY).map(|i| q[row * keys + head * KEY + i] * state[i * VALUE + j]).sum();
                expected.push(0.5 * read);
            }
        }
    }
    for (found, expected) in [(&made[0], &expected), (&made[1], &state)] {
        assert_eq!(found.len(), expected.len());
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} is not {expected:?}");
    }
}
