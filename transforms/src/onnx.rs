//! ONNX's messages: what is planned and what is run is read through them, and what is exported is written through them.
//!
//! A file is weighed by [`weigh`] before it is decoded.

mod edge_llm;
mod weigh;

use prost::bytes::Bytes;
use prost::encoding::decode_varint;
use prost::{DecodeError, Message};
use thiserror::Error;

pub use edge_llm::{EDGE_LLM_OPS, EdgeAttention, EdgeConvolution, EdgeOp, EdgeOpError, EdgeScan};
pub use weigh::weigh;

/// The domain of the operators of TensorRT-Edge-LLM, see [`EdgeOp`].
pub const EDGE_LLM: &str = "trt_edgellm";

/// Bytes that are no model which could be held.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// They are no such message.
    #[error("not a valid ONNX message: {0}")]
    Invalid(#[from] DecodeError),
    /// It would take more memory than is given to a model.
    #[error("its nodes, values and names take more than {} bytes", cacheplan_files::Limit::MEMORY)]
    TooLarge,
}

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* [$($kind:tt)*] $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Message)]
        pub struct $name { $($(#[$field_doc])* #[prost($($kind)*)] pub $field: $type,)* }
    };
}

message! {
    /// A model: a graph and the operators that it is written in.
    ModelProto {
        /// The version of the format.
        [int64, tag = "1"] ir_version: i64,
        /// Who wrote it.
        [string, tag = "2"] producer_name: String,
        /// What is computed.
        [message, optional, tag = "7"] graph: Option<GraphProto>,
        /// The operators' versions.
        [message, repeated, tag = "8"] opset_import: Vec<OperatorSetId>,
        /// Operators that are written in others.
        [message, repeated, tag = "25"] functions: Vec<FunctionProto>,
    }
}

message! {
    /// A version of a domain's operators.
    OperatorSetId {
        /// The domain; empty for the standard one.
        [string, tag = "1"] domain: String,
        /// Its version.
        [int64, tag = "2"] version: i64,
    }
}

message! {
    /// Nodes in the order of their inputs.
    GraphProto {
        /// The nodes.
        [message, repeated, tag = "1"] node: Vec<NodeProto>,
        /// The graph's name.
        [string, tag = "2"] name: String,
        /// Weights and constants.
        [message, repeated, tag = "5"] initializer: Vec<TensorProto>,
        /// What a run is given.
        [message, repeated, tag = "11"] input: Vec<ValueInfo>,
        /// What a run gives.
        [message, repeated, tag = "12"] output: Vec<ValueInfo>,
        /// Shapes of values in between.
        [message, repeated, tag = "13"] value_info: Vec<ValueInfo>,
    }
}

message! {
    /// One operation.
    NodeProto {
        /// The values it reads; an empty name is an input that is left out.
        [string, repeated, tag = "1"] input: Vec<String>,
        /// The values it makes.
        [string, repeated, tag = "2"] output: Vec<String>,
        /// Its name, often empty.
        [string, tag = "3"] name: String,
        /// The operator.
        [string, tag = "4"] op_type: String,
        /// Its attributes.
        [message, repeated, tag = "5"] attribute: Vec<AttributeProto>,
        /// The operator's domain.
        [string, tag = "7"] domain: String,
    }
}

message! {
    /// An attribute of a node, or of a function that its nodes refer to.
    AttributeProto {
        /// Its name.
        [string, tag = "1"] name: String,
        /// A number.
        [float, tag = "2"] f: f32,
        /// A whole number.
        [int64, tag = "3"] i: i64,
        /// A text.
        [bytes = "bytes", tag = "4"] s: Bytes,
        /// A tensor.
        [message, optional, boxed, tag = "5"] t: Option<Box<TensorProto>>,
        /// Numbers.
        [float, repeated, tag = "7"] floats: Vec<f32>,
        /// Whole numbers.
        [int64, repeated, tag = "8"] ints: Vec<i64>,
        /// Which of them it is.
        [int32, tag = "20"] r#type: i32,
    }
}

message! {
    /// A weight or a constant.
    TensorProto {
        /// Its shape.
        [int64, repeated, tag = "1"] dims: Vec<i64>,
        /// Its element type.
        [int32, tag = "2"] data_type: i32,
        /// Elements as a packed list, which are little-endian bytes too.
        [bytes = "bytes", tag = "4"] float_data: Bytes,
        /// Small integers and truth values as a packed list, see [`unpacked`].
        [bytes = "bytes", tag = "5"] int32_data: Bytes,
        /// Integers as a packed list, see [`unpacked`].
        [bytes = "bytes", tag = "7"] int64_data: Bytes,
        /// Its name.
        [string, tag = "8"] name: String,
        /// Elements as little-endian bytes.
        [bytes = "bytes", tag = "9"] raw_data: Bytes,
        /// Where in another file its elements are.
        [message, repeated, tag = "13"] external_data: Vec<KeyValue>,
        /// Whether they are in another file.
        [int32, tag = "14"] data_location: i32,
    }
}

message! {
    /// A pair of texts.
    KeyValue {
        /// What it says.
        [string, tag = "1"] key: String,
        /// Of what.
        [string, tag = "2"] value: String,
    }
}

message! {
    /// A value's name and type.
    ValueInfo {
        /// Its name.
        [string, tag = "1"] name: String,
        /// Its type.
        [message, optional, tag = "2"] r#type: Option<TypeProto>,
    }
}

message! {
    /// A type; of the kinds that there are only tensors are read.
    TypeProto {
        /// A tensor's.
        [message, optional, tag = "1"] tensor_type: Option<TensorType>,
    }
}

message! {
    /// A tensor's element type and shape.
    TensorType {
        /// Its element type.
        [int32, tag = "1"] elem_type: i32,
        /// Its shape.
        [message, optional, tag = "2"] shape: Option<TensorShape>,
    }
}

message! {
    /// The axes of a tensor.
    TensorShape {
        /// Their sizes.
        [message, repeated, tag = "1"] dim: Vec<Dimension>,
    }
}

message! {
    /// An axis: a size, or a name where it is open.
    Dimension {
        /// The size.
        [int64, optional, tag = "1"] dim_value: Option<i64>,
        /// The name.
        [string, optional, tag = "2"] dim_param: Option<String>,
    }
}

message! {
    /// An operator that is written in others.
    FunctionProto {
        /// Its name.
        [string, tag = "1"] name: String,
        /// What it reads.
        [string, repeated, tag = "4"] input: Vec<String>,
        /// What it makes.
        [string, repeated, tag = "5"] output: Vec<String>,
        /// The attributes that a call may state.
        [string, repeated, tag = "6"] attribute: Vec<String>,
        /// How.
        [message, repeated, tag = "7"] node: Vec<NodeProto>,
        /// The versions of what it is written in.
        [message, repeated, tag = "9"] opset_import: Vec<OperatorSetId>,
        /// Its domain.
        [string, tag = "10"] domain: String,
        /// Attributes with what they are where a call does not state them.
        [message, repeated, tag = "11"] attribute_proto: Vec<AttributeProto>,
    }
}

/// The numbers of the element types that are run.
impl TensorProto {
    /// `f32`.
    pub const FLOAT: i32 = 1;
    /// `i32`.
    pub const INT32: i32 = 6;
    /// `i64`.
    pub const INT64: i32 = 7;
    /// A truth value.
    pub const BOOL: i32 = 9;
    /// `f16`, which weights may have.
    pub const FLOAT16: i32 = 10;
    /// `bf16`, which weights may have.
    pub const BFLOAT16: i32 = 16;

    /// Returns the number that it holds, if it is one whole number.
    pub fn whole_number(&self) -> Option<i64> {
        let raw = self.raw_data.as_ref();
        let (stated, packed) = match self.data_type {
            Self::INT32 => (raw.try_into().ok().map(|raw| i32::from_le_bytes(raw).into()), &self.int32_data),
            Self::INT64 => (raw.try_into().ok().map(i64::from_le_bytes), &self.int64_data),
            _ => return None,
        };
        stated.or_else(|| match unpacked(packed).ok()?[..] {
            [only] => Some(only),
            _ => None,
        })
    }
}

/// Reads a packed list of integers.
///
/// # Errors
/// Bytes that end within a number.
pub fn unpacked(mut packed: &[u8]) -> Result<Vec<i64>, DecodeError> {
    let mut numbers = Vec::new();
    while !packed.is_empty() {
        numbers.push(decode_varint(&mut packed)?.cast_signed());
    }
    Ok(numbers)
}

impl NodeProto {
    /// Returns domain and operator in one word; the standard domain is left out.
    pub fn full_type(&self) -> String {
        if matches!(self.domain.as_str(), "" | "ai.onnx") {
            self.op_type.clone()
        } else {
            format!("{}.{}", self.domain, self.op_type)
        }
    }

    /// Returns the input at a position, unless it is left out.
    pub(crate) fn at(&self, position: usize) -> Option<&str> {
        self.input.get(position).map(String::as_str).filter(|name| !name.is_empty())
    }

    /// Returns an integer attribute that is positive.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        let attribute = self.attribute.iter().find(|attribute| attribute.name == name)?;
        u64::try_from(attribute.i).ok().filter(|&number| number > 0)
    }
}
