//! The files of the page, in the program itself.

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Its path, `/app.js`.
    pub path: &'static str,
    /// What browsers are told that it is.
    pub media_type: &'static str,
    /// Its bytes.
    pub bytes: &'static [u8],
}

macro_rules! assets {
    ($($path:literal, $file:literal, $media_type:literal;)*) => {
        [$(Asset { path: $path, media_type: $media_type, bytes: include_bytes!(concat!("../dist/", $file)) }),*]
    };
}

/// The planner as WebAssembly is not among them: behind a server the page asks that.
const ASSETS: [Asset; 5] = assets! {
    "/", "index.html", "text/html; charset=utf-8";
    "/app.js", "app.js", "text/javascript; charset=utf-8";
    "/app.css", "app.css", "text/css; charset=utf-8";
    "/icon.svg", "icon.svg", "image/svg+xml";
    "/zoo.json", "zoo.json", "application/json";
};

impl Asset {
    /// The file at a path of the page.
    pub fn at(path: &str) -> Option<Self> {
        ASSETS.into_iter().find(|asset| asset.path == path)
    }
}
