"""transformers.Trainer with a tiny random BERT; keeps one checkpoint only, in a folder that may hold older ones."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(5, 200, (32,), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids[0] > 100)}


def main():
    config = BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, num_labels=2
    )
    arguments = TrainingArguments(
        output_dir=os.path.join(os.path.dirname(os.path.abspath(__file__)), "output"),
        per_device_train_batch_size=8,
        max_steps=200,
        save_steps=20,
        save_total_limit=1,
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=Sentences())
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
