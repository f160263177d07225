# A question to documents: vectors find some, rerank sorts them, a model answers.
import os

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from llama_index.postprocessor.jinaai_rerank import JinaRerank

base = os.environ["BASE_URL"]
llm = OpenAILike(model="caller", api_base=base, api_key="none", is_chat_model=True, context_window=2048, max_tokens=64)
embed = OpenAILikeEmbedding(model_name="embedder", api_base=base, api_key="none")
rerank = JinaRerank(model="reranker", base_url=base, api_key="none", top_n=2)

print("== chat")
print(llm.chat([ChatMessage(role="user", content="Hello")]).message.content)

print("== chat, streamed")
print("".join(piece.delta or "" for piece in llm.stream_chat([ChatMessage(role="user", content="Hello")])))

print("== vectors of an index")
texts = ["the fleet", "memory", "a stream"]
index = VectorStoreIndex.from_documents([Document(text=t, doc_id=t) for t in texts], embed_model=embed)
vectors = index.vector_store.data.embedding_dict.values()
print(len(vectors), "vectors of", {len(v) for v in vectors}, "numbers")

print("== what is found")
found = index.as_retriever(similarity_top_k=3).retrieve("memory")
print(found[0].node.text, "of", len(found))

print("== what rerank leaves of it")
left = rerank.postprocess_nodes(found, query_str="memory")
scores = [n.score for n in left]
print(len(left), "documents, the best first:", scores == sorted(scores, reverse=True))

print("== the answer")
answer = index.as_query_engine(llm=llm, similarity_top_k=3, node_postprocessors=[rerank]).query("memory")
print(answer, "from", len(answer.source_nodes), "documents")

print("== the answer, streamed")
engine = index.as_query_engine(llm=llm, similarity_top_k=3, node_postprocessors=[rerank], streaming=True)
print("".join(engine.query("memory").response_gen))
