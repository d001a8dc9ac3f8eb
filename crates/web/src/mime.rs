//! Media types by a file name's extension: the registered type of what web servers serve (IANA; for the browser's
//! formats, the WHATWG's MIME Sniffing standard).

/// What is sent for a file whose extension is not known (RFC 9110 section 8.3).
pub(crate) const UNKNOWN: &str = "application/octet-stream";

/// Sorted by extension, in lower case.
const TYPES: &[(&str, &str)] = &[
    ("7z", "application/x-7z-compressed"),
    ("aac", "audio/aac"),
    ("apng", "image/apng"),
    ("asc", "application/pgp-keys"),
    ("atom", "application/atom+xml"),
    ("avi", "video/x-msvideo"),
    ("avif", "image/avif"),
    ("bmp", "image/bmp"),
    ("br", "application/octet-stream"),
    ("bz2", "application/x-bzip2"),
    ("cer", "application/pkix-cert"),
    ("cjs", "text/javascript"),
    ("conf", "text/plain"),
    ("crl", "application/pkix-crl"),
    ("crt", "application/x-x509-ca-cert"),
    ("css", "text/css"),
    ("csv", "text/csv"),
    ("deb", "application/vnd.debian.binary-package"),
    ("der", "application/x-x509-ca-cert"),
    ("diff", "text/plain"),
    ("dmg", "application/x-apple-diskimage"),
    ("doc", "application/msword"),
    ("docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ("eot", "application/vnd.ms-fontobject"),
    ("epub", "application/epub+zip"),
    ("flac", "audio/flac"),
    ("gif", "image/gif"),
    ("gltf", "model/gltf+json"),
    ("gz", "application/gzip"),
    ("htm", "text/html"),
    ("html", "text/html"),
    ("ico", "image/x-icon"),
    ("ics", "text/calendar"),
    ("iso", "application/x-iso9660-image"),
    ("jar", "application/java-archive"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("js", "text/javascript"),
    ("json", "application/json"),
    ("jsonld", "application/ld+json"),
    ("jxl", "image/jxl"),
    ("log", "text/plain"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("m4a", "audio/mp4"),
    ("m4s", "video/iso.segment"),
    ("m4v", "video/mp4"),
    ("map", "application/json"),
    ("md", "text/markdown"),
    ("mid", "audio/midi"),
    ("midi", "audio/midi"),
    ("mjs", "text/javascript"),
    ("mov", "video/quicktime"),
    ("mp3", "audio/mpeg"),
    ("mp4", "video/mp4"),
    ("mpd", "application/dash+xml"),
    ("mpeg", "video/mpeg"),
    ("mpg", "video/mpeg"),
    ("odp", "application/vnd.oasis.opendocument.presentation"),
    ("ods", "application/vnd.oasis.opendocument.spreadsheet"),
    ("odt", "application/vnd.oasis.opendocument.text"),
    ("oga", "audio/ogg"),
    ("ogg", "audio/ogg"),
    ("ogv", "video/ogg"),
    ("opus", "audio/ogg"),
    ("otf", "font/otf"),
    ("p7c", "application/pkcs7-mime"),
    ("patch", "text/plain"),
    ("pdf", "application/pdf"),
    ("pem", "application/x-pem-file"),
    ("pgp", "application/pgp-encrypted"),
    ("png", "image/png"),
    ("ppt", "application/vnd.ms-powerpoint"),
    ("pptx", "application/vnd.openxmlformats-officedocument.presentationml.presentation"),
    ("ps", "application/postscript"),
    ("rdf", "application/rdf+xml"),
    ("rpm", "application/x-redhat-package-manager"),
    ("rss", "application/rss+xml"),
    ("rtf", "application/rtf"),
    ("sha256", "text/plain"),
    ("sha512", "text/plain"),
    ("sig", "application/pgp-signature"),
    ("svg", "image/svg+xml"),
    ("svgz", "image/svg+xml"),
    ("tar", "application/x-tar"),
    ("tgz", "application/gzip"),
    ("tif", "image/tiff"),
    ("tiff", "image/tiff"),
    ("toml", "application/toml"),
    ("ts", "video/mp2t"),
    ("ttc", "font/collection"),
    ("ttf", "font/ttf"),
    ("txt", "text/plain"),
    ("vcf", "text/vcard"),
    ("vtt", "text/vtt"),
    ("wasm", "application/wasm"),
    ("wav", "audio/wav"),
    ("weba", "audio/webm"),
    ("webm", "video/webm"),
    ("webmanifest", "application/manifest+json"),
    ("webp", "image/webp"),
    ("woff", "font/woff"),
    ("woff2", "font/woff2"),
    ("xhtml", "application/xhtml+xml"),
    ("xls", "application/vnd.ms-excel"),
    ("xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"),
    ("xml", "text/xml"),
    ("xsl", "text/xsl"),
    ("xz", "application/x-xz"),
    ("yaml", "application/yaml"),
    ("yml", "application/yaml"),
    ("zip", "application/zip"),
    ("zst", "application/zstd"),
];

/// Whether content of a type is worth compressing: text, and what is text or plain binary under other names. Formats that are
/// compressed themselves are not.
pub(crate) fn compresses(media_type: &str) -> bool {
    let essence = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.starts_with("text/")
        || essence.ends_with("+xml")
        || essence.ends_with("+json")
        || COMPRESS.contains(&&*essence)
}

/// Types that compress and whose names do not tell.
const COMPRESS: &[&str] = &[
    "application/javascript",
    "application/json",
    "application/postscript",
    "application/rtf",
    "application/toml",
    "application/vnd.apple.mpegurl",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/xml",
    "application/yaml",
    "font/collection",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/x-icon",
];

/// The extension of a path's last segment; None when it has none.
pub(crate) fn extension(path: &[u8]) -> Option<&str> {
    let name = path.rsplit(|byte| *byte == b'/').next()?;
    let dot = name.iter().rposition(|byte| *byte == b'.').filter(|dot| *dot > 0)?;
    std::str::from_utf8(&name[dot + 1..]).ok().filter(|extension| !extension.is_empty())
}

/// The type of an extension, in any letter case.
pub(crate) fn of(extension: &str) -> Option<&'static str> {
    let lower = extension.to_ascii_lowercase();
    TYPES.binary_search_by_key(&&*lower, |(known, _)| known).ok().map(|at| TYPES[at].1)
}

/// Whether a charset belongs to the type: what RFC 2046 section 4.1.2 says of text, and XML under that name.
pub(crate) fn takes_charset(media_type: &str) -> bool {
    media_type.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("text/")) && !media_type.contains(';')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_well_formed() {
        assert!(TYPES.is_sorted_by(|a, b| a.0 < b.0), "not sorted");
        for (extension, media_type) in TYPES {
            let (kind, name) = media_type.split_once('/').expect("a type and a subtype");
            assert!(!kind.is_empty() && !name.is_empty() && *extension == extension.to_lowercase(), "{extension}");
        }
    }

    #[test]
    fn extensions_and_types() {
        assert_eq!(extension(b"/a.b/c"), None);
        assert_eq!(extension(b"/.profile"), None);
        assert_eq!(extension(b"/a."), None);
        assert_eq!(extension(b"/a.tar.GZ"), Some("GZ"));
        assert_eq!(of("GZ"), Some("application/gzip"));
        assert_eq!((of("html"), of("js"), of("nope")), (Some("text/html"), Some("text/javascript"), None));
        assert!(takes_charset("text/html") && !takes_charset("text/html; charset=x") && !takes_charset("image/png"));
    }
}
