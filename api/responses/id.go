package responses

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/openai"
)

const (
	idPrefix   = "resp_"
	randomText = 32 // characters of an id that nobody guesses
	maxID      = 256
)

// NewID makes the id of a response that the Mac of that name keeps: who has the
// id knows where to ask for it, and nobody else can name it.
func NewID(mac string) string {
	return idPrefix + hex16() + base64.RawURLEncoding.EncodeToString([]byte(mac))
}

func hex16() string {
	var b [randomText / 2]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return hex.EncodeToString(b[:])
}

// MacOf is the Mac that keeps a response.
func MacOf(id string) (mac string, ok bool) {
	if len(id) <= len(idPrefix)+randomText || len(id) > maxID || id[:len(idPrefix)] != idPrefix {
		return "", false
	}
	name, err := base64.RawURLEncoding.DecodeString(id[len(idPrefix)+randomText:])
	return string(name), err == nil
}

// CodePreviousNotFound is what OpenAI's clients know.
const CodePreviousNotFound = "previous_response_not_found"

// NotFound is a 404 for a response that is not kept.
func NotFound(id string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: openai.TypeInvalidRequest, Code: "response_not_found",
		Message: "The response '" + openai.Shorten(id) + "' is not kept. A response is kept in memory on the Mac that gave it, for a day at most and as long as there is room, unless 'store' was false."}
}

// PreviousNotFound is a 400 for a conversation that cannot be taken up again.
func PreviousNotFound(id string) *openai.Error {
	return &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: CodePreviousNotFound, Param: "previous_response_id",
		Message: "The previous response '" + openai.Shorten(id) + "' is not kept where this model is served. Send the whole conversation as 'input'."}
}

// ItemsQuery are the parameters by which a page of input items is asked for.
var ItemsQuery = []string{"limit", "order", "after"}

// ParseQuery reads the query of a request that asks for a response. What cannot be
// read, or is there twice, is refused: a part of it would be dropped otherwise.
func ParseQuery(raw string) (url.Values, error) {
	query, err := url.ParseQuery(raw)
	if err != nil { // which may quote a key
		return nil, openai.Invalid("", "The query behind '?' cannot be read. Write NAME=VALUE, pairs apart by '&', and other characters as %%XX.")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if len(query[name]) > 1 {
			return nil, openai.Invalid(openai.Shorten(name), "The parameter '%s' is given twice.", openai.Shorten(name))
		}
	}
	return query, nil
}

// IDOf is the id in the path of a request that asks for a response.
func IDOf(path string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/responses/"), "/")
	return id
}
