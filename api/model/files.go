package model

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"
)

// File is one file of a model.
type File struct {
	// path is the path of the file in the model's folder, relative and with
	// slashes.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Path string `json:"path"`
	// bytes is the size of the file, in bytes.
	// +required
	// +kubebuilder:validation:Minimum=1
	Bytes int64 `json:"bytes"`
	// sha256 is the SHA-256 digest of the file, in lower-case hex.
	// +required
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256"`
}

// DigestOf returns the digest of a set of files: the SHA-256 digest of one line
// per file, sorted by path, with the file's digest, size and path.
func DigestOf(files []File) string {
	sorted := append([]File(nil), files...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Path < sorted[j].Path })
	h := sha256.New()
	for _, f := range sorted {
		fmt.Fprintf(h, "%s %d %s\n", f.SHA256, f.Bytes, f.Path)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

var hexDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// clash finds two files that are one file on a Mac's disk.
func (r Record) clash() (a, b string, found bool) {
	paths := make([]string, len(r.Files))
	for i, f := range r.Files {
		paths[i] = f.Path
	}
	return Clash(paths)
}

// Clash finds two paths that a Mac's disk, which ignores case and Unicode normalization,
// may take for one. It is strict with names outside ASCII: they are the same if they
// differ only there.
func Clash(paths []string) (a, b string, found bool) {
	seen := map[string]string{}
	for _, p := range paths {
		key := onDisk(p)
		if other, there := seen[key]; there {
			return other, p, true
		}
		seen[key] = p
	}
	return "", "", false
}

// onDisk is a path without what a Mac's disk ignores. Each run of letters outside ASCII,
// with an ASCII letter that they change, becomes one character: without tables nothing is
// known of how they compose.
func onDisk(p string) string {
	p = strings.NewReplacer("ß", "ss", "ẞ", "ss", "ﬀ", "ff", "ﬁ", "fi", "ﬂ", "fl", "ﬃ", "ffi", "ﬄ", "ffl", "ﬅ", "st", "ﬆ", "st",
		"\u037e", ";", "\u1fef", "`").Replace(p)
	var out []rune
	for _, r := range strings.ToLower(strings.ToUpper(p)) {
		if r < utf8.RuneSelf {
			out = append(out, r)
			continue
		}
		last := len(out) - 1
		if unicode.Is(unicode.M, r) && last >= 0 && out[last] != '/' && out[last] != utf8.RuneError {
			out = out[:last]
			last--
		}
		if last < 0 || out[last] != utf8.RuneError {
			out = append(out, utf8.RuneError)
		}
	}
	return string(out)
}

// LocalPath reports whether p is a relative slash path that stays inside its
// folder: no empty or dot elements, no backslash, no NUL.
func LocalPath(p string) bool {
	if p == "" || strings.ContainsAny(p, "\\\x00") {
		return false
	}
	for _, e := range strings.Split(p, "/") {
		if e == "" || e == "." || e == ".." {
			return false
		}
	}
	return true
}
