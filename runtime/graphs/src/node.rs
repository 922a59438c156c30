//! A node as it is lowered, and the numbers that weights and constants hold.

use cacheplan_transforms::onnx::{AttributeProto, EdgeOp, TensorProto, unpacked};
use prost::bytes::Bytes;

use crate::builder::Builder;
use crate::layout::{MAX_RANK, count};
use crate::tensor::{Data, Value};

/// A node whose values have numbers.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Domain and operator.
    pub(crate) op: String,
    /// Which operator of TensorRT-Edge-LLM it is.
    pub(crate) edge: Option<EdgeOp>,
    /// `None` for those that are left out.
    pub(crate) inputs: Vec<Option<usize>>,
    pub(crate) outputs: Vec<Option<usize>>,
    pub(crate) attributes: Vec<AttributeProto>,
}

impl Node {
    fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.attributes.iter().find(|attribute| attribute.name == name)
    }

    pub(crate) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name).map(|attribute| attribute.i)
    }

    pub(crate) fn float(&self, name: &str) -> Option<f32> {
        self.attribute(name).map(|attribute| attribute.f)
    }

    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice())
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(&self.attribute(name)?.s).ok()
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<Value>, String> {
        let tensor = self.attribute(name).and_then(|attribute| attribute.t.as_deref());
        tensor.map(|tensor| value_of(tensor, None)).transpose()
    }

    /// What a `Constant` holds.
    pub(crate) fn constant(&self) -> Result<Value, String> {
        let scalar = |data| Value::constant(data, Vec::new());
        if let Some(value) = self.tensor("value")? {
            return Ok(value);
        }
        let floats = |values: &[f32]| Value::constant(Data::Float(values.to_vec()), vec![values.len()]);
        let found = [
            self.int("value_int").map(|value| scalar(Data::Int(vec![value]))),
            self.float("value_float").map(|value| scalar(Data::Float(vec![value]))),
            self.ints("value_ints").map(|values| Builder::whole_numbers(values.to_vec())),
            self.attribute("value_floats").map(|attribute| floats(&attribute.floats)),
        ];
        found.into_iter().flatten().next().ok_or_else(|| "it has no value of a known type".to_owned())
    }
}

pub(crate) fn sizes(tensor: &TensorProto) -> Option<Vec<usize>> {
    tensor.dims.iter().map(|&size| usize::try_from(size).ok()).collect()
}

/// A weight or a constant as numbers; 16-bit floats are widened.
pub(crate) fn value_of(tensor: &TensorProto, elsewhere: Option<&Bytes>) -> Result<Value, String> {
    let shape = sizes(tensor).ok_or("its shape has a negative axis")?;
    let len = count(&shape).filter(|_| shape.len() <= MAX_RANK).ok_or("its shape is too large")?;
    let raw = elsewhere.unwrap_or(&tensor.raw_data);
    let packed = |numbers| unpacked(numbers).map_err(|error| format!("its numbers: {error}"));
    let data = match tensor.data_type {
        TensorProto::FLOAT if raw.is_empty() => Data::Float(numbers(&tensor.float_data, f32::from_le_bytes)?),
        TensorProto::FLOAT => Data::Float(numbers(raw, f32::from_le_bytes)?),
        TensorProto::FLOAT16 if !raw.is_empty() => Data::Float(numbers(raw, |b| half::f16::from_le_bytes(b).to_f32())?),
        TensorProto::BFLOAT16 if !raw.is_empty() => {
            Data::Float(numbers(raw, |b| half::bf16::from_le_bytes(b).to_f32())?)
        }
        TensorProto::INT64 if raw.is_empty() => Data::Int(packed(&tensor.int64_data)?),
        TensorProto::INT64 => Data::Int(numbers(raw, i64::from_le_bytes)?),
        TensorProto::INT32 | TensorProto::BOOL if raw.is_empty() => Data::Int(packed(&tensor.int32_data)?),
        TensorProto::INT32 => Data::Int(numbers(raw, |b| i32::from_le_bytes(b).into())?),
        TensorProto::BOOL => Data::Int(numbers(raw, |[byte]| i64::from(byte != 0))?),
        other => return Err(format!("element type {other} is not computed; f32, f16, bf16, i32, i64 and bool are")),
    };
    let found = data.slice().len();
    if found != len {
        return Err(format!("it has {found} numbers, its shape {shape:?} says {len}"));
    }
    Ok(Value::constant(data, shape))
}

fn numbers<const N: usize, T>(raw: &[u8], read: impl Fn([u8; N]) -> T) -> Result<Vec<T>, String> {
    let (chunks, rest) = raw.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are no whole number of elements", raw.len()));
    }
    Ok(chunks.iter().map(|&bytes| read(bytes)).collect())
}
