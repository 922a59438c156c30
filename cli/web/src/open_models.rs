//! Where questions are answered: the models that were opened, and who may open what.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cacheplan_planner::{ModelCaches, PlanRequest, Prices};
use cacheplan_serve::Models;
use cacheplan_serve::fit::By;
use cacheplan_transforms::{Assumption, FrontendError, Model, ReadOptions};
use serde::Serialize;
use serde_json::{Value, json};

use crate::answers::{self, Refused};
use crate::question::{File, PlanQuestion, Question};
use crate::slices::{missing, sources};
use crate::{admits, budget_text, commands, tiers};

/// Models that are kept; the page opens one again that was dropped.
const KEPT: usize = 8;

/// Answers the questions of one page. Several may be asked at once.
#[derive(Debug, Default)]
pub struct OpenModels {
    kept: Mutex<Vec<(u64, ModelCaches)>>,
    next: AtomicU64,
    /// What this machine's disk has; `None` where nothing is read from there.
    disk: Option<Disk>,
}

/// Models on this machine's disk.
#[derive(Debug)]
struct Disk {
    places: Vec<DiskModel>,
    opener: Opener,
}

/// Opens a model by what somebody typed, as a command's argument names one: a path, or a name where the command knows such.
/// What is refused comes with the exit code.
pub type Opener = fn(&str) -> Result<Model, (u8, String)>;

/// A model on this machine's disk.
#[derive(Clone, Debug, Serialize)]
pub struct DiskModel {
    /// What people call it.
    pub name: String,
    /// Its folder or file.
    pub path: String,
    /// Whether the command line named it; the page opens the first of these.
    pub named: bool,
}

impl OpenModels {
    /// Opens models by their path too, and offers these.
    pub fn with_disk(places: Vec<DiskModel>, opener: Opener) -> Self {
        Self { disk: Some(Disk { places, opener }), ..Self::default() }
    }

    /// The answer to a question, as JSON: an object with what was asked for, or with `error`, which has the `message` and
    /// the exit `code` that the command would end with.
    pub fn answer(&self, question: &[u8]) -> String {
        let answer =
            Question::read(question).map_err(Refused::usage).and_then(|(asked, bytes)| self.look_up(asked, bytes));
        answer.unwrap_or_else(|refused| json!({ "error": refused })).to_string()
    }

    fn look_up(&self, question: Question, bytes: &[u8]) -> Result<Value, Refused> {
        match question {
            Question::Choices {} => Ok(answers::choices(self.disk.is_some())),
            Question::Places {} => {
                Ok(json!({ "places": self.disk.as_ref().map(|disk| disk.places.as_slice()).unwrap_or_default() }))
            }
            Question::Open { files, assume } => self.open(&files, bytes, &assume),
            Question::OpenPath { path } => self.open_path(&path),
            Question::Set { budget, key, value } => budget_text::set(&budget, &key, value.as_deref())
                .map(|budget| json!({ "budget": budget }))
                .map_err(Refused::error),
            Question::Plan { of, into, width, people, price } => {
                self.about(&of, |about| answers::plan(about, &into, width.0, people, price))
            }
            // Engines have their own weights of so many bits.
            Question::Admits { of, people, by, prices } => {
                let in_full = PlanQuestion { weights: None, ..of.clone() };
                self.about(&in_full, |about| {
                    admits::admits(about, &of, people, by.as_deref(), prices.unwrap_or_default())
                })
            }
            Question::Commands { of } => commands::found(&of),
            Question::Start { of, at, model, draft } => {
                let draft = draft.map(|draft| self.model(draft)).transpose()?;
                let model = model.map(|model| self.model(model)).transpose()?;
                commands::start(&of, at, model.map(|model| Models { model, draft }).as_ref())
            }
            Question::Curves { of, contexts, width } => {
                self.about(&of, |about| answers::curves(about, &contexts, width.0))
            }
            Question::Explain { of, subject } => self.about(&of, |about| answers::explain(about, &subject)),
            Question::Flags { of, model } => self.about(&of, |about| answers::flags(about, model)),
            Question::Simulate { of, workload, checkpoints } => {
                self.about(&of, |about| answers::simulate(about, workload, &checkpoints))
            }
            Question::Tiers { of, workload, trace, asked, width } => {
                let requests = tiers::requests(workload, trace, bytes)?;
                self.about(&of, |about| tiers::answer(about, asked, requests, width.0))
            }
            Question::Rates { of, rates, width } => self.about(&of, |about| answers::rates(about, &rates, width.0)),
            Question::File { of, format } => self.about(&of, |about| answers::file(about, format)),
            Question::Prices { text, stated, device } => {
                // What a link says that is no price is none.
                let prices = Prices::listed(&stated).unwrap_or_default().typed(&text, &device);
                prices.map(|prices| json!({ "prices": prices.to_string() })).map_err(Refused::usage)
            }
            Question::Fit { model, context, sequences, devices, max_devices, prices, weights, budget, by, width } => {
                let (request, stated) = answers::on_any_device(PlanRequest::of(self.model(model)?), &budget, &devices)?;
                let asked = answers::FitAsked {
                    context,
                    sequences,
                    devices: &devices,
                    max_devices,
                    weights: stated
                        .map_or_else(|| answers::weights_of(&request, weights), |stated| Ok(Some(stated)))?,
                    prices: prices.unwrap_or_default(),
                    by: by.as_deref().map(str::parse::<By>).transpose().map_err(Refused::usage)?,
                };
                answers::fit(&request, asked, width.0)
            }
        }
    }

    fn about(
        &self,
        of: &PlanQuestion,
        answer: impl FnOnce(&PlanRequest) -> Result<Value, Refused>,
    ) -> Result<Value, Refused> {
        let draft = of.draft.map(|draft| self.model(draft)).transpose()?;
        answer(&answers::request(self.model(of.model)?, draft, of)?)
    }

    fn open(&self, files: &[File], bytes: &[u8], assume: &[String]) -> Result<Value, Refused> {
        let (sources, ran) = sources(files, bytes).map_err(Refused::usage)?;
        let (model, beside) = sources.split_first().ok_or_else(|| Refused::usage("no file was given"))?;
        let assume: Result<Vec<Assumption>, _> = assume.iter().map(|text| text.parse()).collect();
        let options = ReadOptions { assume: assume.map_err(Refused::error)?, ..ReadOptions::default() };
        let read = Model::read_source(model, beside, &options);
        match missing(&ran) {
            Some(missing) => Ok(json!({ "missing": missing })),
            None => Ok(self.keep(read.map_err(unread)?)),
        }
    }

    fn open_path(&self, path: &str) -> Result<Value, Refused> {
        let disk =
            self.disk.as_ref().ok_or_else(|| Refused::usage("only `cacheplan web` reads this machine's disk"))?;
        (disk.opener)(path).map(|model| self.keep(model)).map_err(|(code, why)| Refused::new(code, why))
    }

    fn keep(&self, model: Model) -> Value {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let said = answers::opened(number, &model);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((number, model.into()));
        said
    }

    fn model(&self, number: u64) -> Result<ModelCaches, Refused> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().find(|(known, _)| *known == number);
        found.map(|(_, model)| model.clone()).ok_or_else(Refused::gone)
    }
}

fn unread(error: FrontendError) -> Refused {
    Refused::new(if error.is_unsupported() { 4 } else { 1 }, error)
}
