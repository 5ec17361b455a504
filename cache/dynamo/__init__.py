"""``torch.compile(model, backend="graphspec")``: the cache for graphs of Dynamo's."""
