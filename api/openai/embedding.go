package openai

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
)

const (
	// maxInputs is the maximum number of texts in a request for embeddings.
	maxInputs = 2048
	// maxDimensions is the maximum value of dimensions; models have fewer.
	maxDimensions = 1 << 20
	// maxInstruction bounds, in bytes, what is written before each text of a request.
	maxInstruction = 4 << 10
	// Encodings of a vector.
	encodeFloat  = "float"
	encodeBase64 = "base64"
)

// EmbeddingRequest is the body of POST /v1/embeddings. Truncate and
// the fields after it are extensions to OpenAI's API.
type EmbeddingRequest struct {
	Model string
	Input EmbeddingInput
	// Dimensions is the number of dimensions of the vectors; 0 means those of
	// the model.
	Dimensions int
	// Base64 requests vectors as base64-encoded bytes.
	Base64 bool
	// Truncate truncates inputs that exceed the model's context; without it,
	// they are rejected.
	Truncate bool
	// MaxTokens of each input, which is truncated to it; 0 means what the model
	// supports.
	MaxTokens int
	// Prompt is the name of one of the model's prompts; Instruction describes
	// the task of a query. InputType is the kind of the inputs, such as query or
	// document, for which the model may have a prompt.
	Prompt, Instruction, InputType string
}

// EmbeddingInput holds texts or lists of tokens, never both.
type EmbeddingInput struct {
	Texts  []string
	Tokens [][]int32
}

// Embedding reads the body of POST /v1/embeddings. It returns an *Error.
func (d *Decoder) Embedding(body []byte) (*EmbeddingRequest, error) {
	if err := checkJSON(body); err != nil {
		return nil, err
	}
	r := new(EmbeddingRequest)
	err := d.Object(body, "", map[string]field{
		"model":           stringInto(&r.Model),
		"input":           r.Input.decode,
		"dimensions":      optional(integer(1, maxDimensions, func(v int64) { r.Dimensions = int(v) })),
		"encoding_format": optional(r.decodeEncoding),
		"truncate":        optional(TruncateInputs(&r.Truncate)),
		"prompt_name":     optional(Instruction(&r.Prompt)),
		"instruction":     optional(Instruction(&r.Instruction)),
		"input_type":      optional(Instruction(&r.InputType)),

		"truncate_prompt_tokens": optional(TruncateTo(&r.Truncate, &r.MaxTokens)),
	}, embeddingUnused)
	switch {
	case err != nil:
		return nil, err
	case r.Model == "":
		return nil, required("model")
	case r.Input.Texts == nil && r.Input.Tokens == nil:
		return nil, required("input")
	}
	return r, nil
}

// Instruction reads an instruction, or the name of a prompt, which precedes each text of a
// request. It has at most 4 KiB, because each text costs as much again.
func Instruction(to *string) Field {
	return func(param string, raw json.RawMessage) error {
		if err := stringInto(to)(param, raw); err != nil {
			return err
		}
		if len(*to) > maxInstruction {
			return Invalid(param, "'%s' must have at most %d bytes, not %d. It precedes each text: shorten it, or put what is long into the texts.", param, maxInstruction, len(*to))
		}
		return nil
	}
}

// TruncateInputs reads whether long inputs are truncated at their end: a boolean,
// or the word of Cohere's and NVIDIA's clients.
func TruncateInputs(to *bool) Field {
	return func(param string, raw json.RawMessage) error {
		if kind(raw) == "boolean" {
			return boolInto(to)(param, raw)
		}
		if kind(raw) != "string" {
			return wrongKind(param, "true, false, END or NONE", raw)
		}
		var word string
		if err := stringInto(&word)(param, raw); err != nil {
			return err
		}
		if word != "END" && word != "NONE" {
			return Invalid(param, "'%s' must be true, false, END or NONE, not '%s'.", param, Shorten(word))
		}
		*to = word == "END"
		return nil
	}
}

// TruncateTo reads vLLM's number of tokens to which inputs are truncated; -1
// means what the model supports.
func TruncateTo(truncate *bool, tokens *int) Field {
	return func(param string, raw json.RawMessage) error {
		var n *int
		if err := intInto(&n, -1, math.MaxInt32)(param, raw); err != nil {
			return err
		}
		if *n == 0 {
			return Invalid(param, "'%s' must be -1 or at least 1, not 0.", param)
		}
		*truncate, *tokens = true, max(*n, 0)
		return nil
	}
}

func (r *EmbeddingRequest) decodeEncoding(param string, raw json.RawMessage) error {
	var name string
	if err := stringInto(&name)(param, raw); err != nil {
		return err
	}
	if name != encodeFloat && name != encodeBase64 {
		return Invalid(param, "'%s' must be float or base64, not '%s'.", param, Shorten(name))
	}
	r.Base64 = name == encodeBase64
	return nil
}

// decode accepts a string, a list of strings, a list of tokens, or a list of
// lists of tokens.
func (in *EmbeddingInput) decode(param string, raw json.RawMessage) error {
	switch kind(raw) {
	case "null":
		return required(param)
	case "string":
		return in.decodeText(param, raw)
	case "array":
		return in.decodeList(param, raw)
	}
	return wrongKind(param, "a string or a list", raw)
}

func (in *EmbeddingInput) decodeText(param string, raw json.RawMessage) error {
	var text string
	if err := stringInto(&text)(param, raw); err != nil {
		return err
	}
	if text == "" {
		return Invalid(param, "'%s' must not be empty.", param)
	}
	in.Texts = append(in.Texts, text)
	return nil
}

func (in *EmbeddingInput) decodeList(param string, raw json.RawMessage) error {
	first, count := firstKind(raw), 0
	if first == "number" {
		ids, err := decodeTokens(param, raw, onlyTokens(param))
		in.Tokens = append(in.Tokens, ids)
		return err
	}
	err := decodeArray(param, raw, func(at string, raw json.RawMessage) error {
		k := kind(raw)
		if count++; k != first {
			return Invalid(param, "'%s' must contain only strings, only tokens, or only lists of tokens.", param)
		}
		if count > maxInputs {
			return Invalid(param, "'%s' must have at most %d entries. Send several requests.", param, maxInputs)
		}
		switch k {
		case "string":
			return in.decodeText(at, raw)
		case "array":
			ids, err := decodeTokens(at, raw, token)
			in.Tokens = append(in.Tokens, ids)
			return err
		}
		return wrongKind(at, "a string or a token", raw)
	})
	if err == nil && count == 0 {
		return Invalid(param, "'%s' must not be empty.", param)
	}
	return err
}

// EmbeddingList is the response of /v1/embeddings.
type EmbeddingList struct {
	Object string         `json:"object"`
	Data   []Embedding    `json:"data"`
	Model  string         `json:"model"`
	Usage  EmbeddingUsage `json:"usage"`
}

// EmbeddingUsage counts the tokens of a response without generated text.
type EmbeddingUsage struct {
	PromptTokens int `json:"prompt_tokens"`
	TotalTokens  int `json:"total_tokens"`
}

// Embedding is the vector of one input.
type Embedding struct {
	Object    string `json:"object"`
	Index     int    `json:"index"`
	Embedding Vector `json:"embedding"`
}

// Vector is encoded as numbers, or as the base64 of its little-endian bytes.
type Vector struct {
	Values []float32
	Base64 bool
}

// MarshalJSON implements json.Marshaler.
func (v Vector) MarshalJSON() ([]byte, error) {
	if !v.Base64 {
		return json.Marshal(v.Values)
	}
	b := make([]byte, 0, 4*len(v.Values))
	for _, x := range v.Values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return json.Marshal(base64.StdEncoding.EncodeToString(b))
}

// unitSlack is the tolerance for the length of a normalized vector.
const unitSlack = 1e-3

// Shorter returns the first dimensions of a vector. A normalized vector is
// normalized again, as Matryoshka embeddings require.
func Shorter(v []float32, dimensions int) []float32 {
	out := append([]float32(nil), v[:dimensions]...)
	length := norm(v)
	if short := norm(out); math.Abs(length-1) < unitSlack && short > 0 && dimensions < len(v) {
		for i := range out {
			out[i] = float32(float64(out[i]) / short)
		}
	}
	return out
}

func norm(v []float32) float64 {
	var squares float64
	for _, x := range v {
		squares += float64(x) * float64(x)
	}
	return math.Sqrt(squares)
}

// Bytes is the memory of the vectors.
func (l EmbeddingList) Bytes() (n int64) {
	for _, e := range l.Data {
		n += 4 * int64(len(e.Embedding.Values))
	}
	return n
}

// Embeddings builds the response to the request. It rejects a request for more
// dimensions than the model has.
func (r *EmbeddingRequest) Embeddings(vectors [][]float32, promptTokens int) (EmbeddingList, error) {
	list := EmbeddingList{Object: "list", Model: r.Model, Data: []Embedding{}, Usage: EmbeddingUsage{promptTokens, promptTokens}}
	for i, v := range vectors {
		if r.Dimensions > len(v) {
			return list, Invalid("dimensions", "'dimensions' is %d, but the vectors of this model have only %d.", r.Dimensions, len(v))
		}
		if r.Dimensions > 0 {
			v = Shorter(v, r.Dimensions)
		}
		list.Data = append(list.Data, Embedding{Object: "embedding", Index: i, Embedding: Vector{v, r.Base64}})
	}
	return list, nil
}
