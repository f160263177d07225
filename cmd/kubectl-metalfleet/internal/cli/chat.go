package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/front"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

// keyVariable names the environment variable of the API key.
const keyVariable = "METALFLEET_API_KEY"

// frontFlags are the way to the gateway, for chat and bench.
type frontFlags struct {
	url, keyFile string
	maxTokens    int
	temperature  float64
	system       string
}

const wayHelp = `The command connects through a port-forward to a Pod of the gateway, with your own
permissions; --url connects to a gateway directly. If the gateway requires an API
key, the command reads it from the environment variable METALFLEET_API_KEY, or
from the file in --api-key-file; it never prints the key.`

func (f *frontFlags) bind(c *cobra.Command) {
	c.Flags().StringVar(&f.url, "url", "", "base URL of a gateway, for example http://127.0.0.1:8080; default: use a port-forward")
	c.Flags().StringVar(&f.keyFile, "api-key-file", "", "file with the API key; default: $"+keyVariable)
	c.Flags().IntVar(&f.maxTokens, "max-tokens", 0, "maximum number of tokens to generate; 0 uses the server's limit")
	c.Flags().Float64Var(&f.temperature, "temperature", -1, "sampling temperature, 0 to 2; default: the server's")
	c.Flags().StringVar(&f.system, "system", "", "system prompt")
}

// talk is what chat and bench need to ask a model.
type talk struct {
	*front.Way
	key string
	// model as clients name it.
	model   string
	request front.Request
}

// open checks the flags and finds the way.
func (a *app) open(ctx context.Context, f *frontFlags, named string) (*talk, error) {
	if f.maxTokens < 0 || f.temperature > 2 {
		return nil, usagef("--max-tokens must be at least 0, and --temperature from 0 to 2")
	}
	t := &talk{model: named, key: a.Getenv(keyVariable)}
	if f.keyFile != "" {
		b, err := os.ReadFile(f.keyFile)
		if err != nil {
			return nil, fmt.Errorf("read the API key: %w", err)
		}
		t.key = strings.TrimSpace(string(b))
	}
	var err error
	if f.url != "" {
		t.Way, err = front.Direct(f.url)
	} else {
		err = a.forward(ctx, t)
	}
	if err != nil {
		return nil, err
	}
	t.request = front.Request{Model: t.model, MaxTokens: f.maxTokens}
	if f.temperature >= 0 {
		t.request.Temperature = &f.temperature
	}
	if f.system != "" {
		t.request.Messages = []front.Turn{{Role: openai.RoleSystem, Content: f.system}}
	}
	return t, nil
}

// forward opens a port-forward, and names the model as the gateway knows it:
// NAMESPACE/NAME for a deployment of the context's namespace.
func (a *app) forward(ctx context.Context, t *talk) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	if !strings.Contains(t.model, "/") {
		err := c.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: t.model}, &v1alpha1.ModelDeployment{})
		switch {
		case err == nil:
			t.model = c.namespace + "/" + t.model
		case !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err):
			return a.apiError("read deployment "+t.model, err)
		}
	}
	t.Way, err = front.Forward(ctx, c.config, c, a.flags.system, "")
	if err != nil && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err)) {
		return a.apiError("find the gateway", err)
	}
	return err
}

// hint adds what a person can do about a refusal.
func hint(err error, model string) error {
	var refused *openai.Error
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case openai.CodeInvalidAPIKey:
		return fmt.Errorf("%w; set %s to a valid key", err, keyVariable)
	case openai.CodeModelNotFound:
		return fmt.Errorf("%w; `kubectl get mdep -A` lists the deployed models", err)
	case openai.CodeNoEndpoint:
		return fmt.Errorf("%w; run `kubectl metalfleet why %s` to see why", err, model)
	}
	return err
}

const chatLong = `Sends a prompt to a model and streams the response. With a PROMPT, or a prompt on
standard input, it sends one request; on a terminal without PROMPT, it starts a
conversation that ends with Ctrl-D.

MODEL is the name of a ModelDeployment, NAMESPACE/NAME, or a name that clients use.

` + wayHelp

// chatCommand chats with a model through a gateway.
type chatCommand struct{ *app }

func (a chatCommand) chat() *cobra.Command {
	var f frontFlags
	c := &cobra.Command{
		Use: "chat MODEL [PROMPT]", Short: "Chat with a model", Long: chatLong,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usagef("%s takes one MODEL and at most one PROMPT, got %d arguments; quote the prompt", c.CommandPath(), len(args))
			}
			return nil
		},
		Example: "  kubectl metalfleet chat qwen3-8b \"What is a Mac?\"\n" +
			"  kubectl metalfleet chat team-a/qwen3-8b -o json < question.txt\n  kubectl metalfleet chat qwen3-8b",
		ValidArgsFunction: a.complete(modelNames),
	}
	f.bind(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		turnByTurn := len(args) == 1 && a.InTerminal
		if turnByTurn && a.json() {
			return usagef("-o json needs a prompt: pass PROMPT, or write it to standard input")
		}
		prompt, err := a.prompt(args, turnByTurn)
		if err != nil {
			return err
		}
		t, err := a.open(cmd.Context(), &f, args[0])
		if err != nil {
			return err
		}
		defer t.Close()
		if turnByTurn {
			return a.converse(cmd.Context(), t)
		}
		_, err = a.ask(cmd.Context(), t, prompt)
		return err
	}
	a.outputFlag(c)
	return c
}

// prompt is the second argument, or all of standard input.
func (a chatCommand) prompt(args []string, turnByTurn bool) (string, error) {
	if len(args) == 2 || turnByTurn {
		return strings.Join(args[1:], ""), nil
	}
	b, err := io.ReadAll(io.LimitReader(a.In, 16<<20))
	if err != nil {
		return "", fmt.Errorf("read the prompt from standard input: %w", err)
	}
	if strings.TrimSpace(string(b)) == "" {
		return "", usagef("the prompt is empty: pass PROMPT, or write it to standard input")
	}
	return string(b), nil
}

// answered is what -o json prints of one answer.
type answered struct {
	Model        string        `json:"model"`
	Message      front.Turn    `json:"message"`
	FinishReason string        `json:"finishReason"`
	Usage        *openai.Usage `json:"usage,omitempty"`
	// Milliseconds to the first text and to the end.
	FirstMilliseconds int64 `json:"firstTokenMilliseconds"`
	TotalMilliseconds int64 `json:"totalMilliseconds"`
}

// ask sends one turn and prints the answer; the turn and the answer become part
// of the conversation.
func (a chatCommand) ask(ctx context.Context, t *talk, prompt string) (front.Reply, error) {
	t.request.Messages = append(t.request.Messages, front.Turn{Role: openai.RoleUser, Content: prompt})
	reply, err := t.Chat(ctx, t.key, t.request, func(text string) error {
		if a.json() {
			return nil
		}
		if a.OutTerminal { // a model may say anything; a file gets it as it is
			text = picture.Lines(text)
		}
		_, err := io.WriteString(a.Out, text)
		return err
	})
	if !a.json() && reply.Text != "" {
		fmt.Fprintln(a.Out)
	}
	if err != nil {
		return reply, hint(err, t.model)
	}
	message := front.Turn{Role: openai.RoleAssistant, Content: reply.Text}
	t.request.Messages = append(t.request.Messages, message)
	if a.json() {
		return reply, a.printJSON(answered{Model: t.model, Message: message, FinishReason: reply.FinishReason, Usage: reply.Usage,
			FirstMilliseconds: reply.First.Milliseconds(), TotalMilliseconds: reply.Total.Milliseconds()})
	}
	if reply.FinishReason == "length" {
		fmt.Fprintln(a.Err, "(the response was truncated at the token limit)")
	}
	return reply, nil
}

// converse asks turn by turn. A turn that fails is reported, and the conversation
// continues without it.
func (a chatCommand) converse(ctx context.Context, t *talk) error {
	fmt.Fprintln(a.Err, "Chatting with "+t.model+"; press Ctrl-D to exit.")
	lines := a.lines(ctx)
	for {
		fmt.Fprint(a.Err, "> ")
		select {
		case <-ctx.Done():
			return nil
		case line, more := <-lines:
			if !more {
				fmt.Fprintln(a.Err)
				return nil
			}
			if strings.TrimSpace(line) == "" {
				continue
			}
			kept := len(t.request.Messages)
			if _, err := a.ask(ctx, t, line); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				t.request.Messages = t.request.Messages[:kept]
				fmt.Fprintln(a.Err, "error:", picture.Lines(err.Error()))
			}
		}
	}
}

// lines reads standard input. Its goroutine ends with the process: a read of a
// terminal cannot be called off.
func (a chatCommand) lines(ctx context.Context) <-chan string {
	out := make(chan string)
	go func() {
		defer close(out)
		scanner := bufio.NewScanner(a.In)
		scanner.Buffer(nil, 16<<20)
		for scanner.Scan() {
			select {
			case out <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
		if err := scanner.Err(); err != nil {
			fmt.Fprintln(a.Err, "error: read the prompt from standard input:", err)
		}
	}()
	return out
}
