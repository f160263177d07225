package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/rerank"
	"metalfleet.dev/metalfleet/api/responses"
)

// document is one public API: its file in api/openapi, and its operations.
type document struct {
	file, title string
	fault       any // an error's body
	operations  []operation
}

// operation is a method of a path.
type operation struct {
	method, path, id string
	body             *route // nil for none
	query            []any
	answer           any // a value of the whole response type
	streams          bool
	item             string // the resource that the path names; empty for none
	links            map[string]any
}

// documents are the operations of the public APIs.
func documents() []document {
	by := map[string]route{}
	for _, r := range routes() {
		for name := range strings.SplitSeq(r.name, ", ") {
			by[strings.TrimPrefix(name, "POST ")] = r
		}
	}
	post := func(path, id string, answer any, streams bool) operation {
		r := by[path]
		return operation{method: "post", path: path, id: id, body: &r, answer: answer, streams: streams}
	}
	create := post(dialect.PathResponses, "createResponse", responses.Response{}, true)
	create.links = links("getResponse", "listInputItems", "cancelResponse", "deleteResponse")
	input := by[dialect.PathResponses]
	input.name, input.decode = "POST "+dialect.PathInputTokens, func(d *openai.Decoder, b []byte) (any, error) { return responses.DecodeCount(d, b) }
	count := countRoute(by[dialect.PathMessages])
	return []document{
		{"openai.json", "OpenAI's routes", openaiFault(), []operation{
			post(dialect.PathChat, "createChatCompletion", openai.ChatCompletion{}, true),
			post(dialect.PathCompletions, "createCompletion", openai.Completion{}, true),
			post(dialect.PathEmbeddings, "createEmbedding", openai.EmbeddingList{}, false),
			{method: "get", path: dialect.PathModels, id: "listModels", answer: openai.ModelList{}},
			{method: "get", path: dialect.PathModels + "/{model}", id: "getModel", answer: openai.Model{}, item: "model"},
			create,
			{method: "post", path: dialect.PathInputTokens, id: "countInputTokens", body: &input, answer: responses.InputTokens{}},
			{method: "get", path: dialect.PathResponses + "/{response_id}", id: "getResponse", answer: responses.Response{}, item: "response_id"},
			{method: "delete", path: dialect.PathResponses + "/{response_id}", id: "deleteResponse", answer: responses.Deleted{}, item: "response_id"},
			{method: "post", path: dialect.PathResponses + "/{response_id}/cancel", id: "cancelResponse", answer: responses.Response{}, item: "response_id"},
			{method: "get", path: dialect.PathResponses + "/{response_id}/input_items", id: "listInputItems", answer: responses.ItemList{}, item: "response_id", query: itemsQuery()},
		}},
		{"anthropic.json", "Anthropic's routes", anthropicFault(), []operation{
			post(dialect.PathMessages, "createMessage", anthropic.MessageAnswer{}, true),
			{method: "post", path: dialect.PathCountTokens, id: "countTokens", body: &count, answer: anthropic.CountAnswer{}},
		}},
		{"rerank.json", "Cohere's and Jina's routes", rerankFault(), []operation{
			post(dialect.PathRerank, "rerank", rerank.Answer{}, false),
			post(dialect.PathRerankV2, "rerankV2", rerank.Answer{}, false),
		}},
	}
}

// countRoute is the route that counts tokens: it has none of the fields that only affect
// the response.
func countRoute(messages route) route {
	r := route{name: "POST " + dialect.PathCountTokens, base: maps.Clone(messages.base), fields: map[string]string{}, schemas: messages.schemas,
		decode: func(d *openai.Decoder, b []byte) (any, error) { return anthropic.DecodeCount(d, b) }, unused: anthropic.UnusedOfCounts(), partly: messages.partly}
	delete(r.base, "max_tokens")
	for name, value := range messages.fields {
		_, err := r.decode(&openai.Decoder{Strict: true}, body(r.base, name, value))
		if e := new(openai.Error); !errors.As(err, &e) || e.Code != openai.CodeUnknownParameter {
			r.fields[name] = value
		}
	}
	return r
}

func links(ids ...string) map[string]any {
	out := map[string]any{}
	for _, id := range ids {
		out[id] = schema{"operationId": id, "parameters": schema{"response_id": "$response.body#/id"}}
	}
	return out
}

func itemsQuery() []any {
	parameter := func(name string, s schema) any {
		return schema{"name": name, "in": "query", "required": false, "schema": s}
	}
	return []any{parameter("limit", schema{"type": "integer", "minimum": 1, "maximum": 100}), parameter("order", schema{"enum": []any{"asc", "desc"}}),
		parameter("after", schema{"type": "string", "minLength": 1})}
}

func text() any { return schema{"type": "string"} }

func errorOf(required []string, properties schema) any {
	return schema{"type": "object", "required": required, "properties": properties, "additionalProperties": false}
}

func openaiDetail() any {
	number := schema{"type": "integer", "minimum": 0}
	return errorOf([]string{"code", "message", "param", "type"}, schema{"message": schema{"type": "string", "minLength": 1}, "type": text(), "param": orNull(text()), "code": orNull(text()),
		"used_bytes": number, "needed_bytes": number, "limit_bytes": number})
}

func openaiFault() any { return errorOf([]string{"error"}, schema{"error": openaiDetail()}) }

func rerankFault() any {
	return errorOf([]string{"detail", "error", "message"}, schema{"error": openaiDetail(), "message": text(), "detail": text()})
}

func anthropicFault() any {
	return errorOf([]string{"error", "request_id", "type"}, schema{"type": schema{"const": "error"}, "request_id": orNull(text()),
		"error": errorOf([]string{"message", "type"}, schema{"type": text(), "message": schema{"type": "string", "minLength": 1}})})
}

// faults are the statuses of documented errors. No other 5xx is promised: 503 and 507 have
// codes that explain the cause and the next step.
func faults() []int {
	return []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage}
}

// render writes a document.
func (d document) render() ([]byte, error) {
	paths := map[string]schema{}
	for _, o := range d.operations {
		written, err := o.render()
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", o.method, o.path, err)
		}
		if paths[o.path] == nil {
			paths[o.path] = schema{}
		}
		paths[o.path][o.method] = written
	}
	replies := schema{}
	for _, status := range faults() {
		replies[strconv.Itoa(status)] = schema{"description": http.StatusText(status), "content": schema{"application/json": schema{"schema": schema{"$ref": "#/components/schemas/Error"}}}}
	}
	whole := schema{"openapi": "3.1.0", "info": schema{"title": "metalfleet: " + d.title, "version": "v1", "description": "Written by `go run ./hack/apidoc -write`; docs/reference/api.md lists what happens to each field."},
		"paths": paths, "components": schema{"schemas": schema{"Error": d.fault}, "responses": replies}}
	b, err := json.MarshalIndent(whole, "", " ")
	return append(b, '\n'), err
}

func (o operation) render() (schema, error) {
	replies := schema{}
	for _, status := range faults() {
		name := strconv.Itoa(status)
		replies[name] = schema{"$ref": "#/components/responses/" + name}
	}
	content := schema{"application/json": schema{"schema": shape(reflect.TypeOf(o.answer))}}
	if o.streams {
		// An event as a client parses it: its data is JSON, or OpenAI's [DONE].
		content["text/event-stream"] = schema{"schema": schema{"type": "object", "required": []string{"data"}, "properties": schema{"data": text(), "event": text()}}}
	}
	done := schema{"description": "The response.", "content": content}
	if o.links != nil {
		done["links"] = o.links
	}
	replies["200"] = done
	out := schema{"operationId": o.id, "responses": replies}
	parameters := slices.Clone(o.query)
	if o.item != "" {
		parameters = append(parameters, schema{"name": o.item, "in": "path", "required": true, "schema": schema{"type": "string", "minLength": 1}})
	}
	if parameters != nil {
		out["parameters"] = parameters
	}
	if o.body == nil {
		return out, nil
	}
	taken, refused, err := o.body.schema(false)
	if err != nil {
		return nil, err
	}
	example, err := o.body.example()
	out["requestBody"] = schema{"required": true, "content": schema{"application/json": schema{"schema": taken, "example": example}}}
	if len(refused) > 0 {
		out["x-metalfleet-refused"] = refused
	}
	if ignored := o.body.ignored(); len(ignored) > 0 {
		out["x-metalfleet-ignored"] = ignored
	}
	return out, err
}

// example is the smallest valid body.
func (r route) example() (out map[string]json.RawMessage, err error) {
	return out, json.Unmarshal(body(r.base, "", ""), &out)
}

// ignored are the documented fields that are ignored, and why.
func (r route) ignored() map[string]string {
	out := map[string]string{}
	for name := range r.fields {
		if u, ok := r.unusedField(name); ok && !u.Refused {
			out[name] = u.Why
		}
	}
	return out
}

// schema returns the schema of a body: what a decoder accepts, strict or not, and the
// errors for the other documented fields.
func (r route) schema(strict bool) (taken schema, refused map[string]string, err error) {
	properties, required, refused := schema{}, []string{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(r.fields)) {
		property, why, err := r.property(name, strict)
		if err != nil {
			return nil, nil, err
		}
		if why != "" {
			refused[name] = why
		}
		properties[name] = property
		without := maps.Clone(r.base)
		delete(without, name)
		if _, err := r.decode(&openai.Decoder{}, body(without, "", "")); err != nil {
			required = append(required, name)
		}
	}
	taken = schema{"type": "object", "properties": properties, "required": required}
	if strict {
		taken["additionalProperties"] = false
	}
	return taken, refused, nil
}

// property returns the schema of one field. For a refused field, only null and its neutral
// values remain.
func (r route) property(name string, strict bool) (property any, why string, err error) {
	if u, ok := r.unusedField(name); ok && !u.Refused && !strict {
		return schema{}, "", nil
	}
	var refusal *openai.Error
	if _, err := r.decode(&openai.Decoder{Strict: strict}, body(r.base, name, r.fields[name])); errors.As(err, &refusal) && refusal.Param == name {
		harmless, err := r.harmless(name, refusal.Message, strict)
		return schema{"enum": harmless}, refusal.Message, err
	}
	raw, ok := r.schemas[name]
	if !ok {
		return nil, "", fmt.Errorf("the field %s is taken and has no schema; write one in schemas.go", name)
	}
	var s any
	exact := json.NewDecoder(strings.NewReader(raw)) // a float cannot represent the bounds of 64-bit integers
	exact.UseNumber()
	if err := exact.Decode(&s); err != nil {
		return nil, "", fmt.Errorf("schema of %s: %w", name, err)
	}
	s = variant(s, strict)
	if r.takes(strict, name, "null") && !slices.Contains([]string{"{}", "true"}, fmt.Sprint(s)) {
		return orNull(s), "", nil
	}
	return s, "", nil
}

// open is a keyword of schemas.go: the schema of a value when decoding is not strict, if it
// differs.
const open = "x-open"

// variant returns a schema for strict decoding, which accepts only the listed members, or
// for the default, which ignores others.
func variant(s any, strict bool) any {
	switch s := s.(type) {
	case []any:
		out := make([]any, len(s))
		for i := range s {
			out[i] = variant(s[i], strict)
		}
		return out
	case schema:
		if other, ok := s[open]; ok && !strict {
			return variant(other, strict)
		}
		out := schema{}
		for name, value := range s {
			if name != open && (strict || name != "additionalProperties" || value != false) {
				out[name] = variant(value, strict)
			}
		}
		return out
	}
	return s
}

var remedies = regexp.MustCompile(` or send (.*)\.$`)

// harmless returns the values that an error message offers, all of which are accepted.
func (r route) harmless(name, sentence string, strict bool) ([]any, error) {
	out := []any{nil}
	offered := "null"
	if m := remedies.FindStringSubmatch(sentence); m != nil {
		offered += " or " + m[1]
	}
	for value := range strings.SplitSeq(offered, " or ") {
		if !r.takes(strict, name, value) {
			return nil, fmt.Errorf("the field %s is refused, with %q, and so is %s", name, sentence, value)
		}
		var v any
		if err := json.Unmarshal([]byte(value), &v); err != nil {
			return nil, fmt.Errorf("the field %s: what %q offers is no JSON: %w", name, sentence, err)
		}
		if v != nil {
			out = append(out, v)
		}
	}
	return out, nil
}

func (r route) takes(strict bool, name, value string) bool {
	_, err := r.decode(&openai.Decoder{Strict: strict}, body(r.base, name, value))
	return err == nil
}
