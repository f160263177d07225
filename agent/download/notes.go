package download

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// notes describe a partial file and are stored next to it.
type notes struct {
	Version int    `json:"version"`
	URL     string `json:"url"`
	Bytes   int64  `json:"bytes"`
	SHA256  string `json:"sha256"`
	// Validator is the value for If-Range: a strong ETag or a date.
	Validator string `json:"validator,omitempty"`
}

const notesVersion = 1

func newNotes(t Target) notes {
	return notes{Version: notesVersion, URL: t.URL, Bytes: t.Bytes, SHA256: t.SHA256}
}

// match reports whether the partial file belongs to the target.
func (n notes) match(t Target) bool {
	n.Validator = ""
	return n == newNotes(t)
}

func notesName(t Target) string { return t.Name + ".resume" }

// readNotes returns the stored notes; notes that cannot be read match nothing, so
// that the file is fetched again.
func readNotes(t Target) notes {
	var n notes
	b, err := t.Root.ReadFile(notesName(t))
	if err != nil || json.Unmarshal(b, &n) != nil {
		return notes{}
	}
	return n
}

func writeNotes(t Target, n notes) error {
	b, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return t.Root.WriteFile(notesName(t), b, 0o600)
}

func removeNotes(t Target) error {
	if err := t.Root.Remove(notesName(t)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove notes of a part file: %w", err)
	}
	return nil
}

// validator returns the value by which a later If-Range can prove that the file
// is unchanged. A weak ETag cannot.
func validator(h http.Header) string {
	if tag := h.Get("ETag"); strings.HasPrefix(tag, `"`) && len(tag) <= 1024 {
		return tag
	}
	if date := h.Get("Last-Modified"); len(date) <= 64 {
		return date
	}
	return ""
}
