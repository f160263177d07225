package traffic

import (
	"context"
	"fmt"
	"io"

	"metalfleet.dev/metalfleet/metal/wire"
)

// Engine is one of ours, over its socket.
type Engine struct{ Client wire.EngineClient }

// Ask runs one request.
func (e Engine) Ask(ctx context.Context, r Request, each func()) (prompt, answer int, err error) {
	zero := float32(0)
	stream, err := e.Client.Generate(ctx, &wire.GenerateRequest{
		Id: "load", Input: &wire.GenerateRequest_Prompt{Prompt: r.Prompt}, MaxTokens: int64(r.MaxTokens), Sampling: &wire.Sampling{Temperature: &zero},
	})
	if err != nil {
		return 0, 0, fmt.Errorf("generate: %w", err)
	}
	for {
		ev, err := stream.Recv()
		if err == io.EOF {
			return prompt, answer, nil
		}
		if err != nil {
			return prompt, answer, fmt.Errorf("generate: %w", err)
		}
		if len(ev.GetDelta().GetTokens()) > 0 {
			each()
		}
		if f := ev.GetFinished(); f != nil {
			if f.GetError() != nil {
				return prompt, answer, fmt.Errorf("generate: %s", f.GetError().GetMessage())
			}
			prompt, answer = int(f.GetUsage().GetPromptTokens()), int(f.GetUsage().GetGeneratedTokens())
		}
	}
}
