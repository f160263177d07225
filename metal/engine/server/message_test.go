package server_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/metal/wire"
)

// TestAttackATemplateThatRaisesLongMessages: a template of a few bytes can refuse with
// any number of them, when the model is loaded and at each request.
func TestAttackATemplateThatRaisesLongMessages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	c := tinymodel.Default()
	c.Family = tinymodel.Qwen3
	if err := tinymodel.WriteFolder(dir, c, tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	failed := serve(t, engine.Options{ModelPath: dir, LimitBytes: 1 << 30, ChatTemplate: "{{ raise_exception('x' * 1000000) }}"}).await(t, wire.State_STATE_FAILED)
	if n := len(failed.GetMessage()); n == 0 || n > excerpt.MessageBytes || failed.GetReason() != "InvalidModel" {
		t.Errorf("the engine failed for %s with a message of %d bytes", failed.GetReason(), n)
	}
	template := `{% if messages[0].content != 'Hello' %}{{ raise_exception('x' * (messages[0].content | int)) }}{% endif %}Hello`
	s := serve(t, engine.Options{ModelPath: dir, LimitBytes: 1 << 30, ChatTemplate: template})
	s.await(t, wire.State_STATE_READY)
	stream, err := s.client.Generate(deadline(t), &wire.GenerateRequest{Id: "a", Input: &wire.GenerateRequest_Chat{
		Chat: &wire.Chat{Messages: []*wire.ChatMessage{{Role: "user", Content: fmt.Sprint(1 << 20)}}}}})
	if err == nil {
		_, err = stream.Recv()
	}
	if r := wire.RefusalOf(err); r.GetCode() != wire.Code_CODE_INVALID || len(r.GetMessage()) < 100 || len(err.Error()) > 2*excerpt.MessageBytes {
		t.Errorf("the request was refused with %v and %d bytes: %.200v", r.GetCode(), len(err.Error()), err)
	}
}
