//! The operators of TensorRT-Edge-LLM that are known: of which domain and version they are, and what their attributes say.
//!
//! Plans and runs read nodes through here, so that both take and refuse the same graphs. What an attribute means where it
//! is absent is what the plugins take it for.

use thiserror::Error;

use super::{AttributeProto, EDGE_LLM, NodeProto, OperatorSetId};

/// The version of the domain that the plugins register.
const VERSION: i64 = 1;

/// Their names, with the domain.
pub const EDGE_LLM_OPS: [&str; 3] =
    ["trt_edgellm.AttentionPlugin", "trt_edgellm.causal_conv1d", "trt_edgellm.update_ssm_state"];

/// One of the operators, with its attributes.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum EdgeOp {
    /// `causal_conv1d`: x, weight `[channels, 1, d_conv]`, bias, state `[batch, channels, columns]`, context lengths.
    CausalConv1d(EdgeConvolution),
    /// `update_ssm_state`: x, a, b, c, d, dt, dt_bias, state `[batch, heads, head_dim, d_state]`, context lengths.
    UpdateSsmState(EdgeScan),
    /// `AttentionPlugin`: q, k, v, cache `[batch, 2, kv_heads, capacity, head_dim]`, context lengths, rope table
    /// `[1 or batch, positions, rotary_dim]`, start index `[0 or batch]`.
    Attention(EdgeAttention),
}

/// What a convolution states of its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EdgeConvolution {
    padding: Option<i64>,
    groups: i64,
}

/// How a state is updated, and what a node states of its shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EdgeScan {
    /// Whether the time step goes through softplus: 1 where it is not stated.
    pub dt_softplus: bool,
    /// Bounds of the time step, behind softplus.
    pub time_step_limit: (f32, f32),
    /// `nheads`, `dim`, `dstate` and `ngroups`, 0 where they follow from the shapes.
    dims: [i64; 4],
}

/// The heads of an attention, and what it sees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EdgeAttention {
    /// Heads of queries.
    pub heads: u64,
    /// Heads of keys and of values.
    pub kv_heads: u64,
    /// Channels of a head.
    pub head_dim: u64,
    /// Tokens that are seen, the token itself included; `None` for all of them.
    pub window: Option<u64>,
    /// What scores are multiplied by; `None` for one over the root of `head_dim`.
    pub scale: Option<f32>,
}

/// A node that is almost one of the operators.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EdgeOpError {
    /// It has an operator's name in another domain.
    #[error("it is of the domain `{domain}`; the operator of this name is of `{EDGE_LLM}`")]
    Domain {
        /// The domain.
        domain: String,
    },
    /// The graph is written in another version of the domain.
    #[error("the graph imports version {version} of `{EDGE_LLM}`; version {VERSION} is known")]
    Version {
        /// The version.
        version: i64,
    },
    /// An attribute that is not known, or that says what is not computed.
    #[error("attribute {name} {reason}")]
    Attribute {
        /// The attribute's name.
        name: String,
        /// What it says, and what would do.
        reason: String,
    },
}

type Result<T> = std::result::Result<T, EdgeOpError>;

impl EdgeOp {
    /// Which of the operators a node is, in a graph with these versions of domains; `None` for any other node.
    ///
    /// # Errors
    /// The name of an operator in another domain, another version of the domain, an attribute that is not known or says
    /// what is not computed.
    pub fn of(node: &NodeProto, opsets: &[OperatorSetId]) -> Result<Option<Self>> {
        let named = |name: &&str| name.rsplit('.').next() == Some(node.op_type.as_str());
        if !EDGE_LLM_OPS.iter().any(named) {
            return Ok(None);
        }
        if node.domain != EDGE_LLM {
            return Err(EdgeOpError::Domain { domain: node.domain.clone() });
        }
        let versions = opsets.iter().filter(|opset| opset.domain == EDGE_LLM).map(|opset| opset.version);
        if let Some(version) = versions.into_iter().find(|&version| version != VERSION) {
            return Err(EdgeOpError::Version { version });
        }
        let mut stated = Stated { node, read: Vec::new() };
        let op = match node.op_type.as_str() {
            "causal_conv1d" => Self::CausalConv1d(stated.convolution()?),
            "update_ssm_state" => Self::UpdateSsmState(stated.scan()?),
            _ => Self::Attention(stated.attention()?),
        };
        stated.text("plugin_version", "1")?;
        stated.nothing_else()?;
        Ok(Some(op))
    }
}

impl EdgeConvolution {
    /// Holds what the node states to its weight.
    ///
    /// # Errors
    /// Groups of several channels, a padding that is not causal.
    pub fn fits(self, channels: u64, d_conv: u64) -> Result<()> {
        let is = |stated: i64, wanted: u64| u64::try_from(stated) == Ok(wanted);
        if self.groups != 0 && !is(self.groups, channels) {
            return Err(refuse("groups", format!("is {}; each of the {channels} channels is one", self.groups)));
        }
        match self.padding.filter(|&padding| !is(padding, d_conv.saturating_sub(1))) {
            Some(padding) => Err(refuse("padding", format!("is {padding}; a causal one is {}", d_conv - 1))),
            None => Ok(()),
        }
    }
}

impl EdgeScan {
    /// Holds what the node states to its shapes.
    ///
    /// # Errors
    /// A number that the shapes contradict.
    pub fn fits(self, heads: u64, head_dim: u64, d_state: u64, groups: u64) -> Result<()> {
        let sizes = [("nheads", heads), ("dim", head_dim), ("dstate", d_state), ("ngroups", groups)];
        for ((name, size), stated) in sizes.into_iter().zip(self.dims) {
            if stated > 0 && u64::try_from(stated) != Ok(size) {
                return Err(refuse(name, format!("is {stated}, the shapes say {size}")));
            }
        }
        Ok(())
    }
}

fn refuse(name: &str, reason: String) -> EdgeOpError {
    EdgeOpError::Attribute { name: name.to_owned(), reason }
}

/// The attributes of a node, and the names that were asked for.
struct Stated<'a> {
    node: &'a NodeProto,
    read: Vec<&'static str>,
}

impl<'a> Stated<'a> {
    fn convolution(&mut self) -> Result<EdgeConvolution> {
        for name in ["stride", "dilation"] {
            self.only(name, 1)?;
        }
        for name in ["use_mtp", "use_ddtree"] {
            self.only(name, 0)?;
        }
        Ok(EdgeConvolution { padding: self.int("padding")?, groups: self.int("groups")?.unwrap_or(0) })
    }

    fn scan(&mut self) -> Result<EdgeScan> {
        if let Some(size) = self.int("chunk_size")?.filter(|&size| size > 1) {
            return Err(refuse("chunk_size", format!("is {size}, which the plugin refuses; at most 1")));
        }
        self.only("use_mtp", 0)?;
        let mut dim = |name| Ok(self.int(name)?.unwrap_or(0));
        let dims = [dim("nheads")?, dim("dim")?, dim("dstate")?, dim("ngroups")?];
        let dt_softplus = self.int("dt_softplus")?.unwrap_or(1) != 0;
        let time_step_limit = match self.floats("time_step_limit")? {
            None => (0.0, f32::INFINITY),
            Some(&[low, high]) if low <= high => (low, high),
            Some(other) => return Err(refuse("time_step_limit", format!("is {other:?}; a lower and an upper bound"))),
        };
        Ok(EdgeScan { dt_softplus, time_step_limit, dims })
    }

    fn attention(&mut self) -> Result<EdgeAttention> {
        // No cache and no sequence has sizes beyond these, and products of them fit.
        const MOST: i64 = 1 << 20;
        let mut size = |name| match self.int(name)? {
            Some(size @ 1..=MOST) => Ok(size.unsigned_abs()),
            Some(size) => Err(refuse(name, format!("is {size}; from 1 to {MOST}"))),
            None => Err(refuse(name, "is missing".to_owned())),
        };
        let (heads, kv_heads, head_dim) = (size("num_q_heads")?, size("num_kv_heads")?, size("head_size")?);
        if !heads.is_multiple_of(kv_heads) {
            return Err(refuse("num_q_heads", format!("is {heads}, which {kv_heads} heads of keys do not share")));
        }
        for name in ["enable_tree_attention", "enable_fp8_kv_cache", "enable_qk_norm", "enable_kv_shared"] {
            self.only(name, 0)?;
        }
        let window = match self.int("sliding_window_size")? {
            None | Some(-1) => None,
            Some(size @ 1..=i64::MAX) => Some(size.unsigned_abs()),
            Some(size) => return Err(refuse("sliding_window_size", format!("is {size}; -1 or at least 1"))),
        };
        // They are the scales of a cache in fp8, which this one is not.
        self.floats("qkv_scales")?;
        let scale = self.float("attention_scale")?.filter(|&scale| scale != 0.0);
        Ok(EdgeAttention { heads, kv_heads, head_dim, window, scale })
    }

    fn get(&mut self, name: &'static str, kind: i32) -> Result<Option<&'a AttributeProto>> {
        self.read.push(name);
        let found = self.node.attribute.iter().find(|attribute| attribute.name == name);
        match found.filter(|found| found.r#type != kind) {
            Some(other) => Err(refuse(name, format!("is of ONNX's type {}; {kind} was expected", other.r#type))),
            None => Ok(found),
        }
    }

    fn int(&mut self, name: &'static str) -> Result<Option<i64>> {
        Ok(self.get(name, 2)?.map(|attribute| attribute.i))
    }

    fn float(&mut self, name: &'static str) -> Result<Option<f32>> {
        Ok(self.get(name, 1)?.map(|attribute| attribute.f))
    }

    fn floats(&mut self, name: &'static str) -> Result<Option<&'a [f32]>> {
        Ok(self.get(name, 6)?.map(|attribute| attribute.floats.as_slice()))
    }

    /// A number that may be stated, but only as this.
    fn only(&mut self, name: &'static str, wanted: i64) -> Result<()> {
        match self.int(name)?.filter(|&found| found != wanted) {
            Some(found) => Err(refuse(name, format!("is {found}; only {wanted} is computed"))),
            None => Ok(()),
        }
    }

    fn text(&mut self, name: &'static str, wanted: &str) -> Result<()> {
        match self.get(name, 3)?.filter(|found| found.s != wanted.as_bytes()) {
            Some(found) => {
                Err(refuse(name, format!("is `{}`; `{wanted}` is known", String::from_utf8_lossy(&found.s))))
            }
            None => Ok(()),
        }
    }

    fn nothing_else(&self) -> Result<()> {
        match self.node.attribute.iter().find(|attribute| !self.read.contains(&attribute.name.as_str())) {
            Some(other) => Err(refuse(&other.name, "is not known, and could change what is computed".to_owned())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn int(name: &str, i: i64) -> AttributeProto {
        AttributeProto { name: name.to_owned(), i, r#type: 2, ..AttributeProto::default() }
    }

    fn floats(name: &str, floats: &[f32]) -> AttributeProto {
        let floats = floats.to_vec();
        AttributeProto { name: name.to_owned(), floats, r#type: 6, ..AttributeProto::default() }
    }

    fn read(domain: &str, op: &str, version: i64, attribute: Vec<AttributeProto>) -> Result<Option<EdgeOp>> {
        let (domain, op_type) = (domain.to_owned(), op.to_owned());
        let node = NodeProto { domain, op_type, attribute, ..NodeProto::default() };
        EdgeOp::of(&node, &[OperatorSetId { domain: EDGE_LLM.to_owned(), version }])
    }

    #[rstest]
    #[case::another_domain("_trt_edgellm", "causal_conv1d", 1, vec![], "of the domain `_trt_edgellm`")]
    #[case::another_version("trt_edgellm", "causal_conv1d", 2, vec![], "imports version 2 of `trt_edgellm`; version 1")]
    #[case::stride("trt_edgellm", "causal_conv1d", 1, vec![int("stride", 3)], "attribute stride is 3; only 1")]
    #[case::dilation("trt_edgellm", "causal_conv1d", 1, vec![int("dilation", 2)], "attribute dilation is 2; only 1")]
    #[case::chunks("trt_edgellm", "update_ssm_state", 1, vec![int("chunk_size", 64)], "chunk_size is 64, which the plugin")]
    #[case::bounds("trt_edgellm", "update_ssm_state", 1, vec![floats("time_step_limit", &[1.0, 0.5])], "[1.0, 0.5]")]
    #[case::no_number("trt_edgellm", "update_ssm_state", 1, vec![floats("dt_softplus", &[1.0])], "type 6; 2 was expected")]
    #[case::unknown("trt_edgellm", "update_ssm_state", 1, vec![int("gate", 1)], "attribute gate is not known")]
    #[case::no_heads("trt_edgellm", "AttentionPlugin", 1, vec![int("num_q_heads", 4)], "num_kv_heads is missing")]
    fn what_is_not_computed_is_refused_by_name(
        #[case] domain: &str,
        #[case] op: &str,
        #[case] version: i64,
        #[case] attributes: Vec<AttributeProto>,
        #[case] message: &str,
    ) {
        let error = read(domain, op, version, attributes).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }

    #[test]
    fn what_is_absent_is_what_the_plugin_takes_it_for() {
        let Ok(Some(EdgeOp::UpdateSsmState(scan))) = read(EDGE_LLM, "update_ssm_state", 1, Vec::new()) else {
            panic!()
        };
        assert_eq!((scan.dt_softplus, scan.time_step_limit), (true, (0.0, f32::INFINITY)));
        let heads = vec![int("num_q_heads", 4), int("num_kv_heads", 2), int("head_size", 64)];
        let Ok(Some(EdgeOp::Attention(attention))) = read(EDGE_LLM, "AttentionPlugin", 1, heads) else { panic!() };
        assert_eq!((attention.window, attention.scale), (None, None));
        assert_eq!(read("", "Conv", 2, Vec::new()), Ok(None));
    }

    #[test]
    fn what_a_convolution_states_is_held_to_its_weight() {
        let padded = |padding, groups| EdgeConvolution { padding: Some(padding), groups };
        assert_eq!(padded(3, 8).fits(8, 4), Ok(()));
        assert_eq!(EdgeConvolution { padding: None, groups: 0 }.fits(8, 4), Ok(()));
        assert!(padded(0, 8).fits(8, 4).unwrap_err().to_string().contains("padding is 0; a causal one is 3"));
        assert!(padded(3, 2).fits(8, 4).unwrap_err().to_string().contains("groups is 2; each of the 8 channels"));
    }
}
