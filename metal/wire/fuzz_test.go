package wire

import (
	"bytes"
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/proto"
)

// FuzzReadConfig wants any file to be refused, or to be a configuration that
// reads back as itself.
func FuzzReadConfig(f *testing.F) {
	f.Add([]byte(`{"replicaUID":"u","epoch":1,"modelPath":"m","modelDigest":"d","contextTokens":8,"sequences":1,"cacheTokens":8,"limitBytes":1}`))
	f.Add([]byte(`{"replicaUID":"u","unknown":1}`))
	f.Add([]byte(`{"epoch":-1e400}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := ReadConfig(bytes.NewReader(raw))
		if err != nil {
			return
		}
		again, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		same, err := ReadConfig(bytes.NewReader(again))
		if err != nil || same.Hash() != c.Hash() {
			t.Fatalf("%s reads back as %+v, %v", again, same, err)
		}
	})
}

// FuzzFrames wants any bytes to be no message, or one that survives being
// written and read.
func FuzzFrames(f *testing.F) {
	for _, m := range []proto.Message{
		&GenerateRequest{Id: "1", MaxTokens: 7, Stop: []string{"a"}, Input: &GenerateRequest_Prompt{Prompt: "p"}},
		&GenerateRequest{Input: &GenerateRequest_Chat{Chat: &Chat{Messages: []*ChatMessage{{Role: "user", Content: "c", ExtraJson: "{}"}}, ToolsJson: "[]"}}},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, m := range []proto.Message{new(GenerateRequest), new(GenerateEvent), new(Status)} {
			if proto.Unmarshal(raw, m) != nil {
				continue
			}
			again, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			same := m.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(again, same); err != nil || !proto.Equal(m, same) {
				t.Fatalf("%v reads back as %v, %v", m, same, err)
			}
		}
	})
}
