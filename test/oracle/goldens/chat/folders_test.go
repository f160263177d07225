//go:build oracle

package chat

import (
	"context"
	"encoding/json"
	"errors"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/folder"
)

// renderFolder renders messages with the template of a model's folder.
func renderFolder(l line) outcome {
	text, err := folderText(l)
	var refused *chat.RefusedError
	if errors.As(err, &refused) {
		return outcome{Raised: &refused.Message}
	}
	return outcomeOf(text, err)
}

func folderText(l line) (string, error) {
	f, err := folder.Open(l.Folder)
	if err != nil {
		return "", err
	}
	defer f.Close()
	config, err := chat.ReadFolder(f)
	if err != nil {
		return "", err
	}
	if config.Templates == nil {
		return "", errors.New("the folder has no chat template")
	}
	messages, err := chat.ParseMessages(l.Messages)
	if err != nil {
		return "", err
	}
	o := chat.Options{Special: config.Special, Tools: l.Arguments["tools"], Now: now()}
	delete(l.Arguments, "tools")
	if o.Arguments, err = json.Marshal(l.Arguments); err != nil {
		return "", err
	}
	return config.Templates.Render(context.Background(), messages, o)
}
