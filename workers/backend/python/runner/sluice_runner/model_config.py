"""ModelConfig: what auto_complete_config is given and gives back. The texts of its errors are Triton's."""
import json


class ModelConfig:
    """A model's config that may be completed: inputs, outputs, max_batch_size, dynamic batching, decoupled. What it says already
    stays; what contradicts it is a ValueError."""

    def __init__(self, model_config):
        """model_config: JSON, a str."""
        self._model_config = json.loads(model_config)

    def as_dict(self):
        """The config as a dict."""
        return self._model_config

    def _where(self):
        return f"auto-complete-config function for model '{self._model_config['name']}'"

    def set_max_batch_size(self, max_batch_size):
        """Sets max_batch_size; ValueError where the config has a larger one."""
        have = self._model_config.get("max_batch_size", 0)
        if have > max_batch_size:
            raise ValueError(f"configuration specified max_batch_size {have}, but in {self._where()} specified max_batch_size "
                             f"{max_batch_size}")
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self):
        """Sets dynamic_batching; ValueError where the config has another scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(f"Configuration specified scheduling_choice as '{scheduler}', but {self._where()} tries to set "
                                 "scheduling_choice as 'dynamic_batching'")
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict):
        """Sets {"decoupled": bool}; ValueError where the config says otherwise."""
        for name in transaction_policy_dict:
            if name != "decoupled":
                raise ValueError(f"model transaction property in {self._where()} contains property other than 'decoupled'.")
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError("trying to change decoupled property in auto-complete-config for model "
                             f"'{self._model_config['name']}', which is already set to '{policy['decoupled']}'.")
        policy["decoupled"] = decoupled

    def add_input(self, input):
        """Adds {"name", "data_type", "dims"[, "optional"]}, or fills what the config leaves open of that input."""
        self._add("input", input, ("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'")

    def add_output(self, output):
        """Adds {"name", "data_type", "dims"}, or fills what the config leaves open of that output."""
        self._add("output", output, ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")

    def _add(self, kind, tensor, properties, listed):
        if "name" not in tensor:
            raise ValueError(f"{kind} in {self._where()} is missing 'name' property.")
        name = tensor["name"]
        for key in tensor:
            if key not in properties:
                raise ValueError(f"{kind} '{name}' in {self._where()} contains property other than {listed}.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{kind} '{name}' in {self._where()} is missing '{key}' property.")
        tensors = self._model_config.setdefault(kind, [])
        for have in tensors:
            if have["name"] == name:
                return self._fill(kind, have, tensor)
        tensors.append(tensor)

    def _fill(self, kind, have, tensor):
        model, name = self._model_config["name"], tensor["name"]
        datatype = have.get("data_type", "TYPE_INVALID")
        if datatype not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(f"unable to load model '{model}', configuration expects datatype {datatype} for {kind} '{name}', model "
                             f"provides {tensor['data_type']}")
        for key in ("dims", "optional"):
            if key not in tensor or key not in have or key == "dims" and not have[key]:
                continue
            if have[key] != tensor[key]:
                raise ValueError(f"model '{model}', tensor '{name}': the model expects {key} {tensor[key]} but the model configuration "
                                 f"specifies {key} {have[key]}")
        have.update(tensor)
