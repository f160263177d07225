package fuzzapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
)

// promised are the codes of 5xx answers that say nothing is broken; hooks.py has
// the same.
var promised = map[int][]string{
	http.StatusServiceUnavailable:  {openai.CodeOverloaded, "queue_full", openai.CodePrefillMemoryExceeded, openai.CodeAborted, openai.CodeInsufficientMemory},
	http.StatusInsufficientStorage: {openai.CodeInsufficientMemory},
}

// judge returns what is wrong with a response: a 5xx that is not documented, or an
// error that is not in the format of its route.
func judge(path string, status int, h http.Header, body []byte) error {
	if status < 400 {
		return nil
	}
	path, _, _ = strings.Cut(path, "?")
	if kind := h.Get("Content-Type"); kind != "application/json" {
		return fmt.Errorf("%d has the type %q: %.200q", status, kind, body)
	}
	if err := shaped(path, body); err != nil {
		return fmt.Errorf("%d is not in the format of its route: %w: %.200s", status, err, body)
	}
	e := dialect.ParseError(status, h, body)
	if status >= 500 && !slices.Contains(promised[status], e.Code) {
		return fmt.Errorf("%d %q is not promised: %.300s", status, e.Code, body)
	}
	return nil
}

// detail is OpenAI's.
type detail struct {
	Message     string  `json:"message"`
	Type        string  `json:"type"`
	Param       *string `json:"param"`
	Code        *string `json:"code"`
	UsedBytes   *int64  `json:"used_bytes"`
	NeededBytes *int64  `json:"needed_bytes"`
	LimitBytes  *int64  `json:"limit_bytes"`
}

func shaped(path string, body []byte) error {
	var plain struct {
		Error detail `json:"error"`
	}
	var double struct {
		Error   detail `json:"error"`
		Message string `json:"message"`
		Detail  string `json:"detail"`
	}
	var anthropic struct {
		Type  string `json:"type"`
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
		RequestID *string `json:"request_id"`
	}
	switch dialect.Of(dialect.Canonical(path)) {
	case dialect.Rerank:
		err := strictly(body, &double)
		if err == nil && (double.Message == "" || double.Detail != double.Message || double.Error.Message != double.Message) {
			err = errors.New("its sentence is not in message, detail and error")
		}
		return err
	case dialect.Anthropic:
		err := strictly(body, &anthropic)
		if err == nil && (anthropic.Type != "error" || anthropic.Error.Type == "" || anthropic.Error.Message == "") {
			err = errors.New("no type, or no sentence")
		}
		return err
	}
	err := strictly(body, &plain)
	if err == nil && (plain.Error.Message == "" || plain.Error.Type == "") {
		err = errors.New("no type, or no sentence")
	}
	return err
}

func strictly(body []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more data after it")
	}
	return nil
}

// judgeStream wants a stream to end with its route's last event, and no error in it
// that is not promised.
func judgeStream(path string, body []byte) error {
	if !bytes.HasSuffix(body, []byte("\n\n")) {
		return fmt.Errorf("the stream breaks off: %.200q", tail(body))
	}
	events := strings.Split(strings.TrimSuffix(string(body), "\n\n"), "\n\n")
	last := events[len(events)-1] + "\n"
	if !dialect.Of(dialect.Canonical(path)).Ends([]byte(last)) || strings.HasPrefix(last, "event: error") || strings.HasPrefix(last, `data: {"error"`) || strings.HasPrefix(last, "event: response.failed") {
		return fmt.Errorf("the stream ends with %.300q", last)
	}
	return nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-200):] }
