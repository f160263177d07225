// Command openaigo is what the official Go client of the OpenAI API sees: a call
// for each line on the standard input, a reply for each on the standard output.
//
// It owns nothing but the calls; test/oracle/clients starts it, and BASE_URL says where
// the server is. Arguments go through the client's own types, and one that they
// do not carry is an error; so is an answer without what they require.
//
// Start reading at calls.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
)

// ask is one line.
type ask struct {
	Call  string                     `json:"call"`
	Key   string                     `json:"key"`
	Args  json.RawMessage            `json:"args"`
	Extra map[string]json.RawMessage `json:"extra"`
}

// reply to it.
type reply struct {
	Result    any               `json:"result,omitempty"`
	Events    []any             `json:"events,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	RequestID string            `json:"request_id,omitempty"`
	Error     map[string]any    `json:"error,omitempty"`
}

func main() {
	client := openai.NewClient(option.WithBaseURL(os.Getenv("BASE_URL")), option.WithAPIKey("none"), option.WithMaxRetries(0))
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<24)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		if err := out.Encode(play(client, in.Bytes())); err != nil {
			fail(err)
		}
	}
	if err := in.Err(); err != nil {
		fail(fmt.Errorf("read a call: %w", err))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "openaigo:", err)
	os.Exit(1)
}

// play does one call.
func play(client openai.Client, line []byte) reply {
	var a ask
	if err := json.Unmarshal(line, &a); err != nil {
		return reply{Error: failure(err)}
	}
	call, ok := calls(client)[a.Call]
	if !ok {
		call, ok = responseCalls(client)[a.Call]
	}
	if !ok {
		return reply{Error: failure(fmt.Errorf("there is no call %s", a.Call))}
	}
	var got *http.Response
	o := options{option.WithResponseInto(&got)}
	if a.Key != "" {
		o = append(o, option.WithAPIKey(a.Key))
	}
	for name, value := range a.Extra {
		o = append(o, option.WithJSONSet(name, value))
	}
	r, err := call(context.Background(), a.Args, o)
	if err != nil {
		return reply{Error: failure(err)}
	}
	if got != nil {
		r.Headers, r.RequestID = map[string]string{}, got.Header.Get("X-Request-Id")
		for name := range got.Header {
			r.Headers[lower(name)] = got.Header.Get(name)
		}
	}
	return r
}

func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// failure makes an error a reply.
func failure(err error) map[string]any {
	var e *openai.Error
	if !errors.As(err, &e) {
		return map[string]any{"class": fmt.Sprintf("%T", err), "message": "runner: " + err.Error()}
	}
	out := map[string]any{"class": "Error", "status": e.StatusCode, "message": e.Message, "code": e.Code, "param": e.Param, "type": e.Type}
	if e.Response != nil {
		out["request_id"] = e.Response.Header.Get("X-Request-Id")
	}
	return out
}

type (
	options = []option.RequestOption
	ctx     = context.Context
	caller  func(ctx, json.RawMessage, options) (reply, error)
)

// calls of all routes but that of responses.
func calls(c openai.Client) map[string]caller {
	return map[string]caller{
		"chat.create": whole(func(x ctx, p openai.ChatCompletionNewParams, o options) (*openai.ChatCompletion, error) {
			return c.Chat.Completions.New(x, p, o...)
		}),
		"chat.stream": events(func(x ctx, p openai.ChatCompletionNewParams, o options) *ssestream.Stream[openai.ChatCompletionChunk] {
			return c.Chat.Completions.NewStreaming(x, p, o...)
		}),
		"chat.helper": func(x ctx, args json.RawMessage, o options) (reply, error) { return accumulated(x, c, args, o) },
		"completions.create": whole(func(x ctx, p openai.CompletionNewParams, o options) (*openai.Completion, error) {
			return c.Completions.New(x, p, o...)
		}),
		"completions.stream": events(func(x ctx, p openai.CompletionNewParams, o options) *ssestream.Stream[openai.Completion] {
			return c.Completions.NewStreaming(x, p, o...)
		}),
		"embeddings.create": whole(func(x ctx, p openai.EmbeddingNewParams, o options) (*openai.CreateEmbeddingResponse, error) {
			return c.Embeddings.New(x, p, o...)
		}),
		"models.list": func(x ctx, _ json.RawMessage, o options) (reply, error) {
			var data []any
			pages := c.Models.ListAutoPaging(x, o...)
			for pages.Next() {
				m := pages.Current()
				if err := required(m); err != nil {
					return reply{}, err
				}
				data = append(data, json.RawMessage(m.RawJSON()))
			}
			return reply{Result: map[string]any{"data": data}}, pages.Err()
		},
		"models.get": func(x ctx, args json.RawMessage, o options) (reply, error) {
			m, err := c.Models.Get(x, named(args, "model"), o...)
			return answer(m, err)
		},
		"post": func(x ctx, args json.RawMessage, o options) (reply, error) {
			var p struct {
				Path string          `json:"path"`
				Body json.RawMessage `json:"body"`
			}
			var out json.RawMessage
			if err := json.Unmarshal(args, &p); err != nil {
				return reply{}, err
			}
			err := c.Post(x, p.Path[1:], p.Body, &out, o...)
			return reply{Result: out}, err
		},
	}
}

// responseCalls are those of responses.
func responseCalls(c openai.Client) map[string]caller {
	return map[string]caller{
		"responses.create": whole(func(x ctx, p responses.ResponseNewParams, o options) (*responses.Response, error) {
			return c.Responses.New(x, p, o...)
		}),
		"responses.stream": events(func(x ctx, p responses.ResponseNewParams, o options) *ssestream.Stream[responses.ResponseStreamEventUnion] {
			return c.Responses.NewStreaming(x, p, o...)
		}),
		"responses.input_tokens": whole(func(x ctx, p responses.InputTokenCountParams, o options) (*responses.InputTokenCountResponse, error) {
			return c.Responses.InputTokens.Count(x, p, o...)
		}),
		"responses.get": func(x ctx, args json.RawMessage, o options) (reply, error) {
			r, err := c.Responses.Get(x, named(args, "id"), responses.ResponseGetParams{}, o...)
			return answer(r, err)
		},
		"responses.delete": func(x ctx, args json.RawMessage, o options) (reply, error) {
			var out json.RawMessage
			err := c.Responses.Delete(x, named(args, "id"), append(o, option.WithResponseBodyInto(&out))...)
			return reply{Result: out}, err
		},
		"responses.cancel": func(x ctx, args json.RawMessage, o options) (reply, error) {
			r, err := c.Responses.Cancel(x, named(args, "id"), o...)
			return answer(r, err)
		},
		"responses.cancelled": func(x ctx, args json.RawMessage, o options) (reply, error) { return cancelled(x, c, args, o) },
		"responses.items": func(x ctx, args json.RawMessage, o options) (reply, error) {
			page, err := c.Responses.InputItems.List(x, named(args, "id"), responses.InputItemListParams{}, o...)
			if err != nil {
				return reply{}, err
			}
			return reply{Result: json.RawMessage(page.RawJSON())}, nil
		},
	}
}

// named is one string of the arguments.
func named(args json.RawMessage, name string) string {
	var all map[string]string
	_ = json.Unmarshal(args, &all)
	return all[name]
}

// typed reads arguments into the client's own type, which has to carry them all.
func typed(args json.RawMessage, into any) error {
	if err := json.Unmarshal(args, into); err != nil {
		return fmt.Errorf("arguments: %w", err)
	}
	back, err := json.Marshal(reflect.ValueOf(into).Elem().Interface())
	if err != nil {
		return fmt.Errorf("arguments: %w", err)
	}
	var want, got any
	if err := errors.Join(json.Unmarshal(args, &want), json.Unmarshal(back, &got)); err != nil {
		return err
	}
	if !reflect.DeepEqual(want, got) {
		return fmt.Errorf("the client's types made %s of %s", back, args)
	}
	return nil
}

type rawJSON interface{ RawJSON() string }

// answer is the reply of a request with one answer.
func answer[T rawJSON](got T, err error) (reply, error) {
	if err == nil {
		err = required(got)
	}
	if err != nil {
		return reply{}, err
	}
	return reply{Result: json.RawMessage(got.RawJSON())}, nil
}

func whole[P any, T rawJSON](send func(context.Context, P, []option.RequestOption) (T, error)) caller {
	return func(ctx context.Context, args json.RawMessage, o []option.RequestOption) (reply, error) {
		var p P
		if err := typed(args, &p); err != nil {
			return reply{}, err
		}
		got, err := send(ctx, p, o)
		return answer(got, err)
	}
}

func events[P any, T rawJSON](send func(context.Context, P, []option.RequestOption) *ssestream.Stream[T]) caller {
	return func(ctx context.Context, args json.RawMessage, o []option.RequestOption) (reply, error) {
		var p P
		if err := typed(args, &p); err != nil {
			return reply{}, err
		}
		var r reply
		s := send(ctx, p, o)
		defer s.Close()
		for s.Next() {
			r.Events = append(r.Events, json.RawMessage(s.Current().RawJSON()))
		}
		return r, s.Err()
	}
}

// accumulated is what the client's own accumulator makes of a stream.
func accumulated(ctx context.Context, c openai.Client, args json.RawMessage, o []option.RequestOption) (reply, error) {
	var p openai.ChatCompletionNewParams
	if err := typed(args, &p); err != nil {
		return reply{}, err
	}
	s := c.Chat.Completions.NewStreaming(ctx, p, o...)
	defer s.Close()
	var all openai.ChatCompletionAccumulator
	for s.Next() {
		if !all.AddChunk(s.Current()) {
			return reply{}, errors.New("the accumulator refuses a chunk")
		}
	}
	if s.Err() != nil {
		return reply{}, s.Err()
	}
	var choices []any
	for _, one := range all.Choices {
		message := map[string]any{"role": one.Message.Role, "content": one.Message.Content}
		var calls []any
		for _, call := range one.Message.ToolCalls {
			calls = append(calls, map[string]any{"id": call.ID, "type": call.Type,
				"function": map[string]any{"name": call.Function.Name, "arguments": call.Function.Arguments}})
		}
		if calls != nil {
			message["tool_calls"] = calls
		}
		choices = append(choices, map[string]any{"finish_reason": one.FinishReason, "message": message})
	}
	return reply{Result: map[string]any{"choices": choices}}, nil
}

// cancelled ends a response by its id after its first text.
func cancelled(ctx context.Context, c openai.Client, args json.RawMessage, o []option.RequestOption) (reply, error) {
	var p responses.ResponseNewParams
	if err := typed(args, &p); err != nil {
		return reply{}, err
	}
	var r reply
	var id string
	s := c.Responses.NewStreaming(ctx, p, o...)
	defer s.Close()
	for s.Next() {
		e := s.Current()
		r.Events = append(r.Events, json.RawMessage(e.RawJSON()))
		if id == "" && e.Type == "response.created" {
			id = e.Response.ID
		}
		if r.Result == nil && e.Type == "response.output_text.delta" {
			got, err := c.Responses.Cancel(ctx, id)
			if err != nil {
				return reply{}, err
			}
			r.Result = json.RawMessage(got.RawJSON())
		}
	}
	return r, s.Err()
}

// unknown is of the accounts of one provider; the clients in other languages do
// not require it.
const unknown = "AccessPrograms"

// required wants every field of an answer that the client's types require.
func required(answer any) error {
	return requiredIn(reflect.ValueOf(answer), "answer")
}

func requiredIn(v reflect.Value, at string) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return requiredIn(v.Elem(), at)
	case reflect.Slice:
		for i := range v.Len() {
			if err := requiredIn(v.Index(i), fmt.Sprintf("%s.%d", at, i)); err != nil {
				return err
			}
		}
	case reflect.Struct:
		meta := v.FieldByName("JSON")
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() || f.Name == "JSON" || !meta.IsValid() {
				continue
			}
			said := meta.FieldByName(f.Name)
			if !said.IsValid() {
				continue
			}
			field, ok := said.Interface().(interface {
				Raw() string
				Valid() bool
			})
			if ok && f.Tag.Get("api") == "required" && f.Name != unknown && field.Raw() == "" {
				return fmt.Errorf("%s has no %s, which the client requires", at, f.Tag.Get("json"))
			}
			if ok && field.Valid() {
				if err := requiredIn(v.Field(i), at+"."+f.Tag.Get("json")); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
