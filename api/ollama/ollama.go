// Package ollama defines the wire types by which clients of Ollama discover
// models: GET /api/tags, POST /api/show and GET /api/version.
//
// It owns their shapes and nothing that generates: such clients send their
// requests to the OpenAI routes. A fact that the server does not know is absent
// from an answer.
//
// Start reading at NewModel and NewShow.
package ollama

import (
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
)

// Version is the version of Ollama whose routes these are; clients refuse servers
// that claim none, or an old one.
const Version = "0.12.0"

// VersionAnswer is the response of GET /api/version.
type VersionAnswer struct {
	Version string `json:"version"`
}

// Facts are what is known of a model. A zero value is unknown.
type Facts struct {
	Name string
	// Created is when the model was deployed, in Unix seconds.
	Created int64
	// Digest of the files, as sha256:HEX, and their Bytes.
	Digest string
	Bytes  int64
	// Format of the files, Architecture and Quantization as the files name them.
	Format, Architecture, Quantization string
	// ContextTokens is the maximum length of a request.
	ContextTokens int64
	Capabilities  []string
}

// Tags is the response of GET /api/tags.
type Tags struct {
	Models []Model `json:"models"`
}

// Model is one entry of Tags.
type Model struct {
	Name       string  `json:"name"`
	Model      string  `json:"model"`
	ModifiedAt string  `json:"modified_at"`
	Size       int64   `json:"size,omitempty"`
	Digest     string  `json:"digest,omitempty"`
	Details    Details `json:"details"`
}

// Details are the part that both routes share.
type Details struct {
	Format            string   `json:"format,omitempty"`
	Family            string   `json:"family,omitempty"`
	Families          []string `json:"families,omitempty"`
	QuantizationLevel string   `json:"quantization_level,omitempty"`
}

// Show is the response of POST /api/show.
type Show struct {
	// Parameters has a line for each parameter, as a Modelfile does.
	Parameters   string         `json:"parameters,omitempty"`
	Details      Details        `json:"details"`
	ModelInfo    map[string]any `json:"model_info"`
	Capabilities []string       `json:"capabilities,omitempty"`
	ModifiedAt   string         `json:"modified_at"`
}

// NewModel returns the entry of a model in Tags.
func NewModel(f Facts) Model {
	return Model{Name: f.Name, Model: f.Name, ModifiedAt: f.modified(), Size: f.Bytes, Digest: strings.TrimPrefix(f.Digest, "sha256:"), Details: f.details()}
}

// NewShow returns what POST /api/show reports of a model. Clients size their
// prompts by the context length, so it is the length that is served, which may be
// less than the model was trained for.
func NewShow(f Facts) Show {
	s := Show{Details: f.details(), ModelInfo: map[string]any{}, Capabilities: f.Capabilities, ModifiedAt: f.modified()}
	if f.Architecture != "" {
		s.ModelInfo["general.architecture"] = f.Architecture
	}
	if f.ContextTokens > 0 {
		s.Parameters = "num_ctx " + strconv.FormatInt(f.ContextTokens, 10)
		if f.Architecture != "" {
			s.ModelInfo[f.Architecture+".context_length"] = f.ContextTokens
		}
	}
	return s
}

func (f Facts) modified() string { return time.Unix(f.Created, 0).UTC().Format(time.RFC3339) }

func (f Facts) details() Details {
	d := Details{Format: f.Format, Family: f.Architecture, QuantizationLevel: f.Quantization}
	if f.Architecture != "" {
		d.Families = []string{f.Architecture}
	}
	return d
}

// DecodeShow reads the name of the model from the body of POST /api/show. Other
// fields concern only what Ollama adds to its answer, such as verbose.
func DecodeShow(body []byte) (name string, err error) {
	if err := openai.CheckJSON(body); err != nil {
		return "", err
	}
	for member, value := range openai.Members(body) {
		switch string(member) {
		case "model", "name": // clients before 0.6 send name
			if err := openai.String(&name)(string(member), value); err != nil {
				return "", err
			}
		}
	}
	if name == "" {
		return "", openai.Required("model")
	}
	return name, nil
}

// ErrorBody returns an error in the shape that these clients read.
func ErrorBody(e *openai.Error) ([]byte, error) {
	return openai.Marshal(struct {
		Error string `json:"error"`
	}{e.Message})
}
