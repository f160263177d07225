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
	randomText = 32 // characters of an unguessable id
	maxID      = 256
)

// NewID generates the id of a response that the given Mac stores: the id
// contains the Mac's name, and only a client that received the id can name the
// response.
func NewID(mac string) string { return idAt(idPrefix, mac) }

// idAt generates an id that contains the name of the Mac that stores its object.
func idAt(prefix, mac string) string {
	return prefix + hex16() + base64.RawURLEncoding.EncodeToString([]byte(mac))
}

func hex16() string {
	var b [randomText / 2]byte
	rand.Read(b[:]) // never fails since Go 1.24
	return hex.EncodeToString(b[:])
}

// MacOf returns the Mac that stores a response or an item.
func MacOf(id string) (mac string, ok bool) {
	rest, ok := withoutPrefix(id)
	if !ok || len(rest) <= randomText || len(id) > maxID {
		return "", false
	}
	name, err := base64.RawURLEncoding.DecodeString(rest[randomText:])
	return string(name), err == nil
}

// withoutPrefix returns an id without the prefix of a response or an item.
func withoutPrefix(id string) (rest string, ok bool) {
	for _, prefix := range append(slices.Collect(maps.Values(prefixes)), idPrefix) {
		if rest, ok := strings.CutPrefix(id, prefix); ok {
			return rest, true
		}
	}
	return "", false
}

// CodePreviousNotFound is the code that OpenAI's clients recognize.
const CodePreviousNotFound = "previous_response_not_found"

// NotFound returns a 404 for a response that is not stored.
func NotFound(id string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: openai.TypeInvalidRequest, Code: "response_not_found",
		Message: "Response with id '" + openai.Shorten(id) + "' not found. The Mac that generated a response stores it in memory for at most a day, if it has room, unless 'store' was false."}
}

// PreviousNotFound returns a 400 for a conversation that cannot be continued.
func PreviousNotFound(id string) *openai.Error {
	return &openai.Error{Status: http.StatusBadRequest, Type: openai.TypeInvalidRequest, Code: CodePreviousNotFound, Param: "previous_response_id",
		Message: "The previous response '" + openai.Shorten(id) + "' is not stored where this model is served. Send the complete conversation as 'input'."}
}

// CodeItemNotFound is the code of an item that is referenced and not stored.
const CodeItemNotFound = "item_not_found"

// ItemNotFound returns a 404 for a reference to an item that is not stored.
func ItemNotFound(param, id string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: openai.TypeInvalidRequest, Code: CodeItemNotFound, Param: param,
		Message: "The item '" + openai.Shorten(id) + "' is not stored where this model is served. Items are stored with their response, unless 'store' was false. Send the complete item instead of a reference."}
}

// CompactID is the last part of the path of OpenAI's route that compacts a
// conversation. It stands where the other routes have an id.
const CompactID = "compact"

// NoCompaction returns a 404 for that route.
func NoCompaction() *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: openai.TypeInvalidRequest, Code: openai.CodeRouteNotFound,
		Message: "This server does not compact conversations. Ask the model for a summary in an ordinary request, and send it as the input of the next one."}
}

// ItemsQuery are the query parameters that select a page of input items.
var ItemsQuery = []string{"limit", "order", "after"}

// ParseQuery reads the query of a request for a stored response. It rejects an
// invalid or duplicate parameter instead of ignoring it.
func ParseQuery(raw string) (url.Values, error) {
	query, err := url.ParseQuery(raw)
	if err != nil { // which may contain a key
		return nil, openai.Invalid("", "The query string after '?' is invalid. Write NAME=VALUE pairs separated by '&', with other characters encoded as %%XX.")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if len(query[name]) > 1 {
			return nil, openai.Invalid(openai.Shorten(name), "The parameter '%s' appears twice.", openai.Shorten(name))
		}
	}
	return query, nil
}

// IDOf returns the id in the path of a request for a stored response.
func IDOf(path string) string {
	id, _, _ := strings.Cut(strings.TrimPrefix(path, "/v1/responses/"), "/")
	return id
}
