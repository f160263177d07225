package openai

import (
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEmbeddingInputs(t *testing.T) {
	for name, tc := range map[string]struct {
		input string
		want  EmbeddingInput
	}{
		"a text":           {input: `"a"`, want: EmbeddingInput{Texts: []string{"a"}}},
		"texts":            {input: `["a","b"]`, want: EmbeddingInput{Texts: []string{"a", "b"}}},
		"tokens":           {input: `[5,6]`, want: EmbeddingInput{Tokens: [][]int32{{5, 6}}}},
		"lists of tokens":  {input: `[[5,6],[7]]`, want: EmbeddingInput{Tokens: [][]int32{{5, 6}, {7}}}},
		"the largest list": {input: "[" + strings.Repeat(`"a",`, maxInputs-1) + `"a"]`, want: EmbeddingInput{Texts: slices.Repeat([]string{"a"}, maxInputs)}},
		"many tokens":      {input: "[" + strings.Repeat(`7,`, 3*maxInputs) + `7]`, want: EmbeddingInput{Tokens: [][]int32{slices.Repeat([]int32{7}, 3*maxInputs+1)}}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := strictly().Embedding([]byte(`{"model":"m","input":` + tc.input + `}`))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, r.Input); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestInvalidEmbeddingRequestIsRefusedByName(t *testing.T) {
	for name, tc := range map[string]struct{ body, param, code, message string }{
		"no input":             {body: `{"model":"m"}`, param: "input", code: CodeMissingParameter, message: "required"},
		"null":                 {body: `{"model":"m","input":null}`, param: "input", code: CodeMissingParameter, message: "required"},
		"no model":             {body: `{"input":"a"}`, param: "model", code: CodeMissingParameter, message: "required"},
		"an empty text":        {body: `{"model":"m","input":""}`, param: "input", code: CodeInvalidValue, message: "must not be empty"},
		"an empty list":        {body: `{"model":"m","input":[]}`, param: "input", code: CodeInvalidValue, message: "must not be empty"},
		"an empty text within": {body: `{"model":"m","input":["a",""]}`, param: "input[1]", code: CodeInvalidValue, message: "must not be empty"},
		"empty tokens":         {body: `{"model":"m","input":[[]]}`, param: "input[0]", code: CodeInvalidValue, message: "must not be empty"},
		"texts and tokens":     {body: `{"model":"m","input":["a",5]}`, param: "input", code: CodeInvalidValue, message: "must contain only"},
		"tokens and a list":    {body: `{"model":"m","input":[5,[6]]}`, param: "input", code: CodeInvalidValue, message: "must contain only"},
		"a token below zero":   {body: `{"model":"m","input":[-5]}`, param: "input[0]", code: CodeInvalidValue, message: "between 0 and"},
		"an object":            {body: `{"model":"m","input":{}}`, param: "input", code: CodeInvalidValue, message: "a string or a list"},
		"a list of objects":    {body: `{"model":"m","input":[{}]}`, param: "input[0]", code: CodeInvalidValue, message: "a string or a token"},
		"too many":             {body: `{"model":"m","input":[` + strings.Repeat(`"a",`, maxInputs) + `"a"]}`, param: "input", code: CodeInvalidValue, message: "at most 2048"},
		"another encoding":     {body: `{"model":"m","input":"a","encoding_format":"hex"}`, param: "encoding_format", code: CodeInvalidValue, message: "float or base64"},
		"no dimensions":        {body: `{"model":"m","input":"a","dimensions":0}`, param: "dimensions", code: CodeInvalidValue, message: "between 1 and"},
		"an unknown field":     {body: `{"model":"m","input":"a","task":"x"}`, param: "task", code: CodeUnknownParameter, message: "is unknown"},
		"no JSON":              {body: `{`, code: CodeMalformedJSON, message: "not valid JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := strictly().Embedding([]byte(tc.body))
			wantError(t, err, 400, tc.param, tc.code, tc.message)
		})
	}
}

func TestEmbeddingsAreFloatsOrBase64(t *testing.T) {
	r := &EmbeddingRequest{Model: "m"}
	for _, tc := range []struct {
		base64 bool
		want   string
	}{
		{want: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-2]},{"object":"embedding","index":1,"embedding":[1,0]}],"model":"m","usage":{"prompt_tokens":5,"total_tokens":5}}`},
		// 0.1 and -2 are cdcccc3d and 000000c0 in little-endian bytes.
		{base64: true, want: `{"object":"list","data":[{"object":"embedding","index":0,"embedding":"zczMPQAAAMA="},{"object":"embedding","index":1,"embedding":"AACAPwAAAAA="}],"model":"m","usage":{"prompt_tokens":5,"total_tokens":5}}`},
	} {
		r.Base64 = tc.base64
		list, err := r.Embeddings([][]float32{{0.1, -2}, {1, 0}}, 5)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.want, string(got)); d != "" {
			t.Error(d)
		}
	}
}

func TestFewerDimensionsKeepUnitLength(t *testing.T) {
	r := &EmbeddingRequest{Model: "m", Dimensions: 2}
	list, err := r.Embeddings([][]float32{{0.6, 0, 0.8}, {3, 4, 12}, {0, 0, 1}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]float32{{1, 0}, {3, 4}, {0, 0}} // vectors of another length are unchanged
	for i, w := range want {
		if d := cmp.Diff(w, list.Data[i].Embedding.Values); d != "" {
			t.Errorf("vector %d: %s", i, d)
		}
	}
	whole := []float32{0.6, 0, float32(math.Sqrt(1 - 0.36))}
	r.Dimensions = 3
	if list, err = r.Embeddings([][]float32{whole}, 1); err != nil || !slices.Equal(list.Data[0].Embedding.Values, whole) {
		t.Errorf("all dimensions: %v, %v; want the bits of the model", list.Data, err)
	}
	r.Dimensions = 4
	_, err = r.Embeddings([][]float32{whole}, 1)
	wantError(t, err, 400, "dimensions", CodeInvalidValue, "only 3")
}

// TestAttackMillionsOfTokens: a list of tokens costs a few bytes for each, and has an end.
func TestAttackMillionsOfTokens(t *testing.T) {
	for name, tc := range map[string]struct {
		before, after string
		decode        func(body []byte) error
	}{
		"a prompt":          {before: `{"model":"m","prompt":[`, after: `]}`, decode: func(b []byte) error { _, err := strictly().Completion(b); return err }},
		"a list of prompts": {before: `{"model":"m","prompt":[[`, after: `]]}`, decode: func(b []byte) error { _, err := strictly().Completion(b); return err }},
		"an input":          {before: `{"model":"m","input":[`, after: `]}`, decode: func(b []byte) error { _, err := strictly().Embedding(b); return err }},
		"a list of inputs":  {before: `{"model":"m","input":[[`, after: `]]}`, decode: func(b []byte) error { _, err := strictly().Embedding(b); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			body := []byte(tc.before + strings.Repeat("1,", maxTokenIDs-1) + "1" + tc.after)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := tc.decode(body)
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; err != nil || took > 16*uint64(len(body)) {
				t.Errorf("%d MiB were allocated for %d MiB: %v", took>>20, len(body)>>20, err)
			}
			if err := tc.decode([]byte(tc.before + strings.Repeat("1,", maxTokenIDs) + "1" + tc.after)); AsError(err).Status != 400 {
				t.Errorf("one more: %v", err)
			}
		})
	}
}
