//! What describes a model, and what of it was fetched.

use cacheplan_files::Source;

/// The files that describe a model.
#[derive(Debug)]
pub struct Description {
    /// The model and the commit it was read at, `org/name@commit`.
    pub revision: String,
    /// The file that was named; without it the others are those of a model's folder.
    pub file: Option<Source>,
    /// The other files. Of weights there are the headers.
    pub beside: Vec<Source>,
    /// What was fetched, and where it may be kept.
    #[cfg(feature = "fetch")]
    pub(crate) fetched: Option<crate::fetched::Fetched>,
}

impl Description {
    pub(crate) fn of(revision: String, file: Option<Source>, beside: Vec<Source>) -> Self {
        Self {
            revision,
            file,
            beside,
            #[cfg(feature = "fetch")]
            fetched: None,
        }
    }

    /// Tells whether it was fetched just now.
    pub fn is_fetched(&self) -> bool {
        #[cfg(feature = "fetch")]
        return self.fetched.is_some();
        #[cfg(not(feature = "fetch"))]
        false
    }

    /// Puts what was fetched where the next run finds it: whole files in the hub's cache, as its own tools do, and what
    /// was read of other files beside them. To be called once the model was read.
    ///
    /// # Errors
    /// What cannot be written. The model was read nevertheless.
    pub fn keep(&self) -> std::io::Result<()> {
        #[cfg(feature = "fetch")]
        if let Some(fetched) = &self.fetched {
            fetched.keep()?;
        }
        Ok(())
    }
}
