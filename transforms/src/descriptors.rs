//! The built-in descriptors: what each op of [`crate::ops`] keeps between steps.

use cacheplan_handlers::{DType, DecayKind, Recurrence, ResourceHandler, Ring};

use crate::graph::{Attribute, Op};
use crate::registry::{Cache, DescribeError, Descriptor, OpView, Registry};

type Caches = Result<Vec<Cache>, DescribeError>;

impl Default for Registry {
    fn default() -> Self {
        let mut registry = Self::empty();
        built_in().into_iter().for_each(|descriptor| registry.register(descriptor));
        registry
    }
}

fn built_in() -> [Descriptor; 14] {
    [
        Descriptor::new(Op::ATTENTION, attention),
        Descriptor::new(Op::MLA, mla),
        Descriptor::new(Op::INDEXER, indexer),
        Descriptor::new(Op::ENTRIES, entries),
        Descriptor::new(Op::RING, ring),
        Descriptor::new(Op::COMPRESSED_ATTENTION, compressed_attention),
        Descriptor::new(Op::RWKV4, rwkv4),
        Descriptor::new(Op::SSD, ssd),
        Descriptor::new(Op::SELECTIVE_SCAN, selective_scan),
        Descriptor::new(Op::LINEAR_ATTENTION, linear_attention),
        Descriptor::new(Op::RG_LRU, rg_lru),
        Descriptor::new(Op::STATE, state),
        Descriptor::new(Op::STATIC_CACHE, static_cache),
        Descriptor::new(Op::CAUSAL_CONV, causal_conv),
    ]
}

fn one(suffix: &'static str, handler: ResourceHandler) -> Caches {
    Ok(vec![Cache { suffix: suffix.into(), handler }])
}

fn attention(op: &mut OpView<'_>) -> Caches {
    let num_kv_heads = op.dim("num_kv_heads", "key", 2)?;
    let head_dim = op.dim("head_dim", "key", 3)?;
    let (value_heads, value_dim) = (op.dim("value heads", "value", 2)?, op.dim("value head_dim", "value", 3)?);
    if value_heads != num_kv_heads {
        return Err(DescribeError::Inconsistent(format!(
            "keys are {num_kv_heads} heads of {head_dim}, values {value_heads} heads of {value_dim}; \
             one paged cache holds both only if there are as many heads"
        )));
    }
    let dtype = op.kv_dtype("key")?;
    let handler = if value_dim == head_dim {
        op.provenance.retain(|line| !line.starts_with("value "));
        ResourceHandler::kv_paged(num_kv_heads, head_dim, dtype)?
    } else {
        // A row of a head holds its key and then its value.
        ResourceHandler::kv_paged(num_kv_heads, head_dim.saturating_add(value_dim), dtype)?.with_kv_factor(1)?
    };
    one("kv_cache", windowed(op, handler)?)
}

fn mla(op: &mut OpView<'_>) -> Caches {
    let rank = op.dim("kv_lora_rank", "latent", 2)?;
    let rope = op.dim("qk_rope_head_dim", "rope_key", 2)?;
    let handler = ResourceHandler::mla_paged(rank, rope, op.kv_dtype("latent")?)?;
    one("ckv_cache", windowed(op, handler)?)
}

/// The same cache, for the tokens of the op's window only if it has one.
fn windowed(op: &mut OpView<'_>, handler: ResourceHandler) -> Result<ResourceHandler, DescribeError> {
    let Some(window) = op.op().number(Attribute::WINDOW) else { return Ok(handler) };
    op.provenance.push(format!("window = {window} (attribute)"));
    Ok(handler.with_window(tokens("window", window)?)?)
}

/// A number of tokens that a cache's growth can hold.
fn tokens(what: &str, number: u64) -> Result<u32, DescribeError> {
    u32::try_from(number).map_err(|_| DescribeError::Inconsistent(format!("{what} {number} is too large")))
}

fn indexer(op: &mut OpView<'_>) -> Caches {
    let width = op.dim("index_head_dim", "index_key", 2)?;
    let dtype = match op.stored_dtype() {
        Some(dtype) => dtype,
        None => op.kv_dtype("index_key")?,
    };
    one("index_cache", ResourceHandler::index_key(width, stride(op)?, dtype)?)
}

fn entries(op: &mut OpView<'_>) -> Caches {
    let suffix = op.op().name.part.clone();
    let handler = if op.rank("entry")? == 3 {
        let width = op.dim("width", "entry", 2)?;
        ResourceHandler::compressed_latent(width, stride(op)?, op.kv_dtype("entry")?)?
    } else {
        let (heads, width) = (op.dim("num_kv_heads", "entry", 2)?, op.dim("head_dim", "entry", 3)?);
        let keys = ResourceHandler::kv_paged(heads, width, op.kv_dtype("entry")?)?.with_kv_factor(1)?;
        keys.with_stride(stride(op)?)?
    };
    Ok(vec![Cache { suffix, handler: windowed(op, handler)? }])
}

/// The tokens for which there is one entry.
fn stride(op: &mut OpView<'_>) -> Result<u32, DescribeError> {
    let Some(ratio) = op.op().number(Attribute::RATIO) else { return Ok(1) };
    op.note(format!("ratio = {ratio} (attribute)"));
    tokens("ratio", ratio)
}

fn ring(op: &mut OpView<'_>) -> Caches {
    let width = op.dim("width", "row", 2)?;
    let Some(Attribute::Numbers(of_ring)) = op.op().get(Attribute::RING) else {
        return Err(DescribeError::Inconsistent("it does not say how many rows it has".to_owned()));
    };
    let &[behind, unit, doubles] = of_ring.as_slice() else {
        return Err(DescribeError::Inconsistent(format!("{of_ring:?} are no rows, unit and doubling of a ring")));
    };
    let ring = Ring { behind, unit, doubles: doubles > 0 };
    let handler = ResourceHandler::ring(ring, width, op.dtype("row")?)?;
    op.note(format!("rows = {} ({behind} that are read, in units of {unit})", ring.rows(0)));
    Ok(vec![Cache { suffix: op.op().name.part.clone(), handler }])
}

/// Where entries stand for few tokens, neighbouring entries overlap and an indexer chooses among them; where they
/// stand for many, neither is needed.
pub(crate) const OVERLAPPING_RATIO: u64 = 4;

fn compressed_attention(op: &mut OpView<'_>) -> Caches {
    let width = op.dim("head_dim", "latent", 2)?;
    let dtype = op.kv_dtype("latent")?;
    let ratio = op.op().number(Attribute::RATIO).unwrap_or(0);
    let latent = windowed(op, ResourceHandler::mla_paged(width, 0, dtype)?)?;
    let mut caches = vec![Cache { suffix: "ckv_cache".into(), handler: latent }];
    if ratio == 0 {
        return Ok(caches);
    }
    op.provenance.push(format!("ratio = {ratio} (attribute)"));
    let stride = tokens("ratio", ratio)?;
    let overlap = if ratio <= OVERLAPPING_RATIO { 2 } else { 1 };
    // The tokens of the entry being formed, with their scores; twice as many where entries overlap.
    let pending = |width: u64| ResourceHandler::state(&[2, overlap * ratio, overlap * width], DType::F32);
    let mut add = |suffix: &'static str, handler| caches.push(Cache { suffix: suffix.into(), handler });
    add("compressed_cache", ResourceHandler::compressed_latent(width, stride, dtype)?);
    add("compressor_state", pending(width)?);
    if overlap == 2 && op.op().port("index_key").is_some() {
        let width = op.dim("index_head_dim", "index_key", 2)?;
        add("index_cache", ResourceHandler::index_key(width, stride, dtype)?);
        add("index_compressor_state", pending(width)?);
    }
    Ok(caches)
}

/// The previous token's input of both mixers, and numerator, denominator and maximum of the weighted average.
fn rwkv4(op: &mut OpView<'_>) -> Caches {
    let hidden = op.dim("hidden_size", "x", 2)?;
    let width = op.dim("width", "key", 2)?;
    let shift = ResourceHandler::state(&[2, hidden], op.conv_dtype("x")?)?;
    let average = ResourceHandler::state(&[3, width], op.state_dtype()?)?;
    Ok(vec![
        Cache { suffix: "shift_state".into(), handler: shift },
        Cache { suffix: "wkv_state".into(), handler: average },
    ])
}

fn recurrent(op: &mut OpView<'_>, shape: [u64; 3], recurrence: Recurrence) -> Caches {
    let [num_heads, head_dim, d_state] = shape;
    if let Recurrence::Ssd { n_groups: shared } | Recurrence::LinearAttention { num_k_heads: shared, .. } = recurrence
        && (shared == 0 || !num_heads.is_multiple_of(shared))
    {
        return Err(DescribeError::Inconsistent(format!(
            "{num_heads} heads of states cannot share {shared} of their inputs"
        )));
    }
    let state = ResourceHandler::ssm(num_heads, head_dim, d_state, op.recurrent_dtype(&recurrence)?)?;
    op.provenance.push(format!("recurrence = {recurrence} ({})", op.op().kind));
    one("ssm_state", state.with_recurrence(recurrence))
}

fn ssd(op: &mut OpView<'_>) -> Caches {
    let num_heads = op.dim("num_heads", "x", 2)?;
    let head_dim = op.dim("head_dim", "x", 3)?;
    let d_state = op.dim("d_state", "b", 3)?;
    let n_groups = op.dim("n_groups", "b", 2)?;
    recurrent(op, [num_heads, head_dim, d_state], Recurrence::Ssd { n_groups })
}

fn selective_scan(op: &mut OpView<'_>) -> Caches {
    let d_inner = op.dim("d_inner", "x", 2)?;
    let d_state = op.dim("d_state", "b", 2)?;
    recurrent(op, [d_inner, 1, d_state], Recurrence::SelectiveScan)
}

/// The heads are those of the values: several value heads may share a key head, and each keeps its own matrix.
fn linear_attention(op: &mut OpView<'_>) -> Caches {
    let num_v_heads = op.dim("num_v_heads", "value", 2)?;
    let head_k_dim = op.dim("head_k_dim", "key", 3)?;
    let head_v_dim = op.dim("head_v_dim", "value", 3)?;
    let num_k_heads = op.dim("num_k_heads", "key", 2)?;
    let delta_rule = op.op().port("beta").is_some();
    let decay = match op.op().port("decay") {
        None => DecayKind::Fixed,
        Some(_) if op.rank("decay")? == 3 => DecayKind::PerHead,
        Some(_) => DecayKind::PerChannel,
    };
    let recurrence = Recurrence::LinearAttention { num_k_heads, delta_rule, decay };
    recurrent(op, [num_v_heads, head_k_dim, head_v_dim], recurrence)
}

fn rg_lru(op: &mut OpView<'_>) -> Caches {
    let width = op.dim("width", "x", 2)?;
    recurrent(op, [width, 1, 1], Recurrence::RgLru)
}

fn state(op: &mut OpView<'_>) -> Caches {
    let shape = (1..op.rank("state")?).map(|axis| op.dim("state", "state", axis)).collect::<Result<Vec<u64>, _>>()?;
    let handler = ResourceHandler::state(&shape, op.dtype("state")?)?;
    Ok(vec![Cache { suffix: op.op().name.part.clone(), handler }])
}

/// What the graph reads and writes has the element type that it was exported with.
fn static_cache(op: &mut OpView<'_>) -> Caches {
    let heads = op.dim("num_kv_heads", "cache", 1)?;
    let head_dim = op.dim("head_dim", "cache", 3)?;
    let handler = ResourceHandler::static_cache(heads, head_dim, op.dtype("cache")?)?;
    Ok(vec![Cache { suffix: op.op().name.part.clone(), handler }])
}

fn causal_conv(op: &mut OpView<'_>) -> Caches {
    let conv_dim = op.dim("conv_dim", "x", 2)?;
    let d_conv = op.dim("d_conv", "weight", 1)?;
    if d_conv < 2 {
        return Ok(Vec::new());
    }
    let sections = match op.op().get(Attribute::SECTIONS) {
        Some(Attribute::Numbers(sections)) => sections.clone(),
        _ => Vec::new(),
    };
    let dtype = match op.stored_dtype() {
        Some(dtype) => dtype,
        None => op.conv_dtype("x")?,
    };
    // Columns are kept up to the kernel's first, which lie apart where it is dilated.
    let columns = (d_conv - 1).saturating_mul(op.op().number(Attribute::DILATION).unwrap_or(1));
    let handler = ResourceHandler::causal_conv(conv_dim, columns.saturating_add(1), sections, dtype)?;
    Ok(match op.op().number(Attribute::KEY_HEADS) {
        None => vec![Cache { suffix: "conv_state".into(), handler }],
        Some(heads) => {
            let handler = handler.of_kv_heads(heads)?;
            vec![Cache { suffix: op.op().name.part.clone(), handler }]
        }
    })
}
