package openai

// ChatAnswer builds the responses to one chat request, streamed or not. All of
// them share id, time and model. Chunks belong to the choice with index Index.
type ChatAnswer struct {
	Index        int
	ID           string
	Created      int64
	Model        string
	IncludeUsage bool
}

// Whole returns the non-streamed response.
func (a ChatAnswer) Whole(text, finish string, usage Usage) ChatCompletion {
	return ChatCompletion{ID: a.ID, Object: "chat.completion", Created: a.Created, Model: a.Model,
		Choices: []ChatChoice{{Index: a.Index, Message: AnswerMessage{Role: RoleAssistant, Content: &text}, FinishReason: finish}},
		Usage:   &usage}
}

// Opening returns the first chunk, which sets the role.
func (a ChatAnswer) Opening() ChatCompletionChunk {
	empty := ""
	return a.chunk(ChatChunkChoice{Index: a.Index, Delta: Delta{Role: RoleAssistant, Content: &empty}})
}

// Text returns a chunk that adds text.
func (a ChatAnswer) Text(text string) ChatCompletionChunk {
	return a.chunk(ChatChunkChoice{Index: a.Index, Delta: Delta{Content: &text}})
}

// Reasoning returns a chunk that adds to the model's reasoning.
func (a ChatAnswer) Reasoning(text string) ChatCompletionChunk {
	return a.chunk(ChatChunkChoice{Index: a.Index, Delta: Delta{ReasoningText: NewReasoningText(text)}})
}

// KeepAlive returns a chunk without content, which keeps an idle stream open: clients
// count it as activity, and add nothing. It may come before Opening.
func (a ChatAnswer) KeepAlive(p *PromptProgress) ChatCompletionChunk {
	c := a.chunk(ChatChunkChoice{Index: a.Index})
	c.Progress, c.Usage = p, ChunkUsage{}
	return c
}

// Finish returns the last chunk with a choice.
func (a ChatAnswer) Finish(reason string) ChatCompletionChunk {
	return a.chunk(ChatChunkChoice{Index: a.Index, FinishReason: &reason})
}

// Usage returns the chunk after Finish, which is sent only when IncludeUsage is
// set.
func (a ChatAnswer) Usage(u Usage) ChatCompletionChunk {
	c := a.chunk()
	c.Usage = ChunkUsage{Present: true, Usage: &u}
	return c
}

func (a ChatAnswer) chunk(choices ...ChatChunkChoice) ChatCompletionChunk {
	return ChatCompletionChunk{ID: a.ID, Object: "chat.completion.chunk", Created: a.Created, Model: a.Model,
		Choices: append([]ChatChunkChoice{}, choices...), Usage: ChunkUsage{Present: a.IncludeUsage}}
}

// CompletionAnswer builds the responses to one completion request. Chunks
// belong to the choice with index Index.
type CompletionAnswer struct {
	Index        int
	ID           string
	Created      int64
	Model        string
	IncludeUsage bool
}

// Whole returns the non-streamed response.
func (a CompletionAnswer) Whole(text, finish string, usage Usage) Completion {
	c := a.chunk(CompletionChoice{Index: a.Index, Text: text, FinishReason: &finish})
	c.Usage = ChunkUsage{Present: true, Usage: &usage}
	return c
}

// Text returns a chunk that adds text.
func (a CompletionAnswer) Text(text string) Completion {
	return a.chunk(CompletionChoice{Index: a.Index, Text: text})
}

// KeepAlive returns a chunk without text, which keeps an idle stream open.
func (a CompletionAnswer) KeepAlive(p *PromptProgress) Completion {
	c := a.chunk(CompletionChoice{Index: a.Index})
	c.Progress, c.Usage = p, ChunkUsage{}
	return c
}

// Finish returns the last chunk with a choice.
func (a CompletionAnswer) Finish(reason string) Completion {
	return a.chunk(CompletionChoice{Index: a.Index, FinishReason: &reason})
}

// Usage returns the chunk after Finish, which is sent only when IncludeUsage is
// set.
func (a CompletionAnswer) Usage(u Usage) Completion {
	c := a.chunk()
	c.Usage = ChunkUsage{Present: true, Usage: &u}
	return c
}

func (a CompletionAnswer) chunk(choices ...CompletionChoice) Completion {
	return Completion{ID: a.ID, Object: "text_completion", Created: a.Created, Model: a.Model,
		Choices: append([]CompletionChoice{}, choices...), Usage: ChunkUsage{Present: a.IncludeUsage}}
}
