//! Safetensors: headers only. They give the exact bytes of the weights, and check the config's dimensions.

mod header;
mod index;
mod rules;

use std::collections::BTreeSet;

use cacheplan_files::{Limit, Source};

use self::header::{Header, TensorHeader};
use self::index::Index;
use super::FrontendError;
use super::files::Files;
use crate::model::{Fact, Model};
use crate::weights::{WeightBytes, WeightClass, WeightClasses};

/// The weights of one model.
pub(super) struct Weights {
    /// What was read: the file, or the index.
    file: String,
    /// The tensors that tell a dimension.
    telling: Vec<TensorHeader>,
    /// The decoder layers that have a tensor.
    layers: BTreeSet<u32>,
    bytes: Option<WeightBytes>,
    /// What could not be compared with anything, in words.
    unchecked: Vec<String>,
    /// Whether the index names shards that are not there.
    is_partial: bool,
}

/// What the headers of all shards may take in all; those of a model of 140,000 tensors take 15 MiB.
const MAX_HEADERS: u64 = 64 << 20;
/// The most tensors that tell a dimension: a dozen for each layer.
const MAX_TELLING: usize = 120_000;

/// The files that an index of shards names.
pub(super) fn shards(index: &Source) -> Result<BTreeSet<String>, FrontendError> {
    Ok(index.json::<Index>(Limit::INDEX)?.into_shards())
}

impl Weights {
    /// The weights in a folder; `None` if there are none in this format.
    pub(super) fn in_folder(folder: &Files<'_>) -> Result<Option<Self>, FrontendError> {
        if let Some(index) = folder.open(INDEX_FILE)? {
            return Self::sharded(&index, folder).map(Some);
        }
        folder.open("model.safetensors")?.map(|single| Self::single(&single)).transpose()
    }

    /// The weights in one file.
    pub(super) fn single(source: &Source) -> Result<Self, FrontendError> {
        let mut weights = Self::none(source);
        weights.add(&Header::read(source)?);
        Ok(weights)
    }

    fn none(source: &Source) -> Self {
        Self {
            file: source.name().to_owned(),
            telling: Vec::new(),
            layers: BTreeSet::new(),
            bytes: Some(WeightBytes { classes: Some(WeightClasses::default()), ..WeightBytes::new(0, true) }),
            unchecked: Vec::new(),
            is_partial: false,
        }
    }

    /// Those of the files that an index names.
    pub(super) fn sharded(source: &Source, folder: &Files<'_>) -> Result<Self, FrontendError> {
        let mut weights = Self::none(source);
        let index: Index = source.json(Limit::INDEX)?;
        let mut read = 0;
        for shard in index.shards() {
            let Some(file) = folder.open(shard)? else {
                weights.unchecked.push(format!("shard {shard} is absent"));
                weights.is_partial = true;
                continue;
            };
            let header = Header::read(&file)?;
            read += header.bytes;
            weights.add(&header);
            if read > MAX_HEADERS || weights.telling.len() > MAX_TELLING {
                let expected =
                    format!("at most {MAX_HEADERS} bytes of headers and {MAX_TELLING} layers' tensors are read");
                return Err(weights.bad("weight_map", shard, &expected));
            }
        }
        // Only the index says how large is what is not there; nothing proves it.
        if weights.is_partial {
            weights.bytes = index.total_size().map(WeightBytes::unproven);
        }
        Ok(weights)
    }

    fn add(&mut self, header: &Header) {
        self.bytes = self.bytes.and_then(|sum| {
            let mut classes = sum.classes?;
            header
                .tensors
                .iter()
                .try_for_each(|tensor| classes.add(WeightClass::of_tensor(&tensor.name), tensor.bytes()))?;
            let bytes = sum.bytes.checked_add(header.data)?;
            let exact = sum.exact && header.is_whole();
            Some(WeightBytes { bytes, exact, unproven: !exact, classes: Some(classes) })
        });
        if !header.is_whole() {
            self.unchecked.push(format!("{} ends before its data does", header.file));
        }
        self.layers.extend(header.tensors.iter().filter_map(|tensor| rules::layer_of(&tensor.name)));
        self.telling.extend(header.tensors.iter().filter(|tensor| rules::tells(&tensor.name)).cloned());
    }

    /// Checks a model's dimensions against the tensors, and gives it the size of its weights.
    pub(super) fn verify(&self, model: &mut Model) -> Result<(), FrontendError> {
        let checked = rules::check(&self.file, &self.telling, &model.graph)?;
        // One shard of several, or a file of something else, does not tell the size of the whole.
        let without = if self.is_partial { Vec::new() } else { rules::layers_without(&self.layers, &model.graph) };
        if let (Some(weights), []) = (self.bytes, &*without) {
            self.plausible(weights, model.info.weights)?;
            model.prediction.weights = None;
            model.info.weights = Some(weights.in_proportion_to(model.info.weights));
        }
        let mut note = |what: &str, value: String, assumed: bool| {
            model.facts.push(Fact { what: what.to_owned(), value, from: self.file.clone(), assumed });
        };
        note("dimensions checked", checked.to_string(), false);
        if let Some(layer) = without.first() {
            let count = without.len();
            note("weights not counted", format!("{count} layers have no tensor here, layer {layer} the first"), true);
        }
        for unchecked in &self.unchecked {
            note("not checked", unchecked.clone(), true);
        }
        Ok(())
    }

    /// A size that only the index states is compared with what the dimensions make: no format packs 16 weights into
    /// the bytes of one.
    fn plausible(&self, stated: WeightBytes, estimate: Option<WeightBytes>) -> Result<(), FrontendError> {
        match estimate {
            Some(estimate) if !stated.exact && stated.bytes < estimate.bytes / 16 => {
                let expected = format!("about {} were expected of the config's dimensions", estimate.bytes);
                Err(self.bad("metadata.total_size", &stated.bytes.to_string(), &expected))
            }
            _ => Ok(()),
        }
    }

    /// Without a config some dimension is missing; this names it.
    pub(super) fn missing_dimension(&self) -> FrontendError {
        rules::missing_dimension(&self.file, &self.telling)
    }

    fn bad(&self, key: &str, found: &str, expected: &str) -> FrontendError {
        let (file, key) = (self.file.clone(), key.to_owned());
        FrontendError::BadValue { file, key, found: found.to_owned(), expected: expected.to_owned() }
    }
}

/// The file that says which tensor is in which shard.
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Whether it names the files of weights that are in several.
pub(super) fn is_index(source: &Source) -> bool {
    source.name().ends_with(".safetensors.index.json")
}
