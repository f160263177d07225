package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tokenizer"
	"metalfleet.dev/metalfleet/metal/weights"
)

// maxText bounds what tokenize and template read, in bytes.
const maxText = 256 << 20

// openText opens the text side of a model alone.
func openText(ctx context.Context, path string) (*text.Text, error) {
	file, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	t, err := text.Open(ctx, file)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return t, nil
}

func tokenize(ctx context.Context, e *env, args []string) error {
	f := e.flags("tokenize")
	modelPath := f.String("model", "", modelHelp)
	decode := f.Bool("decode", false, "read a JSON array of token IDs and print text")
	special := f.Bool("special", true, "parse the text of control tokens as control tokens")
	around := f.Bool("add-special", true, "add the special tokens that the model was trained with, as transformers does")
	alwaysJSON(f)
	skip := f.Bool("skip-special", false, "with --decode, omit control tokens")
	if err := parse(f, args, "model"); err != nil {
		return err
	}
	t, err := openText(ctx, *modelPath)
	if err != nil {
		return err
	}
	in, err := readBounded(e.stdin, "standard input")
	if err != nil {
		return err
	}
	if !*decode {
		ids, err := t.Tokenizer.Encode(string(in), tokenizer.EncodeOptions{AddSpecial: *around, ParseSpecial: *special})
		if err != nil {
			return err
		}
		return json.NewEncoder(e.stdout).Encode(append([]int32{}, ids...)) // of an empty text [], and not null
	}
	var ids []int32
	if err := json.Unmarshal(in, &ids); err != nil {
		return usagef("standard input is not a JSON array of token IDs: %w", err)
	}
	out, err := t.Tokenizer.Decode(ids, *skip)
	if err != nil {
		return err
	}
	_, err = io.WriteString(e.stdout, out)
	return err
}

func template(ctx context.Context, e *env, args []string) error {
	f := e.flags("template")
	modelPath := f.String("model", "", modelHelp)
	messages := f.String("messages", "", "file with a JSON array of messages, as in the OpenAI API (required)")
	tools := f.String("tools", "", "file with a JSON array of tool definitions")
	arguments := f.String("arguments", "", "JSON object with additional variables for the template, such as {\"enable_thinking\":false}")
	if err := parse(f, args, "model", "messages"); err != nil {
		return err
	}
	conversation := text.Chat{Arguments: json.RawMessage(*arguments)}
	raw, err := readFile(*messages)
	if err != nil {
		return usageError{err}
	}
	if conversation.Messages, err = readMessages(raw); err != nil {
		return usageError{fmt.Errorf("%s: %w", *messages, err)}
	}
	if *tools != "" {
		if conversation.Tools, err = readFile(*tools); err != nil {
			return usageError{err}
		}
	}
	t, err := openText(ctx, *modelPath)
	if err != nil {
		return err
	}
	out, err := t.Render(ctx, conversation)
	if err != nil {
		return err
	}
	_, err = io.WriteString(e.stdout, out)
	return err
}

// readMessages hands every member of a message but its role to the template as
// it stands.
func readMessages(raw []byte) ([]chat.Message, error) {
	var members []json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, fmt.Errorf("not a JSON array of messages: %w", err)
	}
	out := make([]chat.Message, len(members))
	for i, m := range members {
		rest := map[string]json.RawMessage{}
		if err := json.Unmarshal(m, &rest); err != nil {
			return nil, fmt.Errorf("message %d is not an object: %w", i, err)
		}
		if err := json.Unmarshal(rest["role"], &out[i].Role); err != nil {
			return nil, fmt.Errorf("message %d has no role: %w", i, err)
		}
		delete(rest, "role")
		var err error
		if out[i].Extra, err = json.Marshal(rest); err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
	}
	return out, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readBounded(file, path)
}

func readBounded(r io.Reader, name string) ([]byte, error) {
	in, err := io.ReadAll(io.LimitReader(r, maxText+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(in) > maxText {
		return nil, usagef("%s is larger than %d bytes", name, maxText)
	}
	return in, nil
}
